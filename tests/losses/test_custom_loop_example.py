"""examples/custom_loop.py stays short, runs in seconds, and learns."""

import importlib.util
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_loop.py"


def test_it_learns(capsys):
    spec = importlib.util.spec_from_file_location("custom_loop", EXAMPLE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    history = example.train(steps=41)
    chance = 1 / 12
    assert sum(history[:5]) / 5 < chance + 0.1
    assert sum(history[-5:]) / 5 > 0.7
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("step  40") and not last.endswith("active 0.00")  # the penalty takes part
