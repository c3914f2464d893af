"""The starting policies that come with holdfast: made again, measured, and written into the package.

    holdfast warm-start quickstart --run.name start
    python -m holdfast_research.starts ship quickstart runs/start/model
    python -m holdfast_research.starts check quickstart runs/start/model    # another one: does it arrive at the same?

The start of `flaky` is also that of `collapse`, and of most experiments of the study.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from holdfast.base.environment import versions
from holdfast.base.run_folder import CHECKSUMS
from holdfast.recipe import load
from holdfast.recipe.loading import find_recipe
from holdfast.train.start_cache import SHIPPED, settings_hash

SAME = 0.1
"""How far scores of a start made again may be from those of the shipped one. Processors round sums differently, so the
start is another policy, with other scores."""


def measure(recipe: str, model: Path) -> dict[str, float]:
    """Scores of a model on the test questions of a bundled recipe, sampled untruncated and greedy."""
    from holdfast.model.language_model import load_model, pick_device
    from holdfast.tasks.machine import set_up_torch
    from holdfast.tasks.opening import load_questions, load_retrievers, make_agent
    from holdfast.train.evaluate import Evaluator

    config = load(find_recipe(recipe))
    set_up_torch(config)
    language_model = load_model(config.model, model, pick_device(config.run.device))
    agent = make_agent(config, language_model, load_retrievers(config).eval)
    return Evaluator(agent, 1, seed=0, max_failed=0.0)(load_questions(config).test).scores


def ship(recipe: str, model: Path, scores: Mapping[str, float]) -> Path:
    """Write a model into the package as the start of a bundled recipe; the folder."""
    folder = SHIPPED / recipe
    files = {f"model/{path.name}": path.read_bytes() for path in sorted(model.iterdir()) if path.name != CHECKSUMS}
    files["model/tokenizer.json"] = _compact(files["model/tokenizer.json"])
    state = {
        "recipe": recipe,
        "settings": settings_hash(load(find_recipe(recipe))),
        "command": f"holdfast warm-start {recipe}",
        "made_by": _makers(model),
        "scores": {name: round(value, 4) for name, value in scores.items()},
    }
    files["state.json"] = (json.dumps(state, indent=1) + "\n").encode()
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(files.items())}
    files[CHECKSUMS] = (json.dumps(sums, indent=1) + "\n").encode()
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def differences(recipe: str, scores: Mapping[str, float]) -> list[str]:
    """A sentence for each score that is more than `SAME` from the shipped start's."""
    shipped = json.loads((SHIPPED / recipe / "state.json").read_text())["scores"]
    return [
        f"{name}: {scores[name]:.3f}, shipped {shipped[name]:.3f}"
        for name in shipped
        if abs(scores[name] - shipped[name]) > SAME
    ]


def _makers(model: Path) -> dict[str, str]:
    """What made a model: a start from the cache says so, and one without a word of it was made with what is here."""
    state = model.parent / "state.json"
    return {"holdfast": json.loads(state.read_text())["made_by"]} if state.exists() else versions()


def _compact(text: bytes) -> bytes:
    """JSON without indentation: a third less."""
    return json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")).encode()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("todo", choices=("ship", "check"))
    parser.add_argument("recipe", help="quickstart or flaky")
    parser.add_argument("model", type=Path, help="what `holdfast warm-start` wrote")
    asked = parser.parse_args()
    scores = measure(asked.recipe, asked.model)
    print(", ".join(f"{name} {value:.3f}" for name, value in scores.items()))
    if asked.todo == "ship":
        print(ship(asked.recipe, asked.model, scores))
    elif wrong := differences(asked.recipe, scores):
        raise SystemExit("another policy: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
