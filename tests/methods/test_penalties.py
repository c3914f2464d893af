"""A penalty is a value, and says of itself what hosts need to know; a class of the user's own is one too."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.base.errors import ConfigError
from holdfast.methods.penalties import LLDS, NLL, SAPO, CustomPenalty, NoPenalty, Penalty
from holdfast.recipe import load

Write = Callable[[str], str]


@pytest.mark.parametrize(
    ("penalty", "per_token"),
    [
        (LLDS(), 0.0),
        (LLDS(gate="token"), 0.0),
        (SAPO(tau=0.6), 0.0),
        (SAPO(tau=1.0), 0.0),
        (SAPO(tau=1.2), -1.0),  # -log r has gradient -1, and r = 1 < 1.2 counts
        (SAPO(tau=1e6), -1.0),
        (NLL(), -1.0),
    ],
)
def test_it_acts_without_drift_if_its_gradient_is_not_zero_where_nothing_has_moved(
    penalty: Penalty, per_token: float
) -> None:
    old = torch.tensor([[-1.0, -2.0]])
    logprobs = old.clone().requires_grad_()
    advantages, mask = torch.tensor([[0.5]]), torch.ones(1, 2, dtype=torch.bool)
    preserved = penalty.preserved(advantages, mask)
    penalty.per_token(logprobs, old, advantages, mask, preserved=preserved).sum().backward()
    assert logprobs.grad is not None and logprobs.grad.tolist() == [[per_token, per_token]]
    assert penalty.acts_without_drift == (per_token != 0)


def test_the_section_of_a_recipe_is_the_value() -> None:
    words = ["--loss.penalty.name=llds", "--loss.penalty.coef=0.5", "--loss.penalty.gate=token"]
    assert load(overrides=words).loss.penalty == LLDS(coef=0.5, gate="token")
    assert load(overrides=["--loss.penalty.name=none"]).loss.penalty == NoPenalty()
    assert LLDS().term == LLDS() and NoPenalty().term is None


@pytest.mark.parametrize("searches", [0.0, 0.5, 1.0, 1.75, 2.0, 3.5])
def test_a_schedule_rises_to_its_base_at_its_target(searches: float) -> None:
    paper = LLDS(answer_weight="adaptive-paper", answer_base=0.8, answer_target=4.0)
    code = LLDS(answer_weight="adaptive-code", answer_base=0.5, answer_target=3.0)
    assert paper.weight_at(searches) == pytest.approx(min(1.0, 0.8 * searches / 4))
    assert code.weight_at(searches) == pytest.approx(min(1.0, 0.5 * max(searches - 1, 0) / 2))
    assert LLDS(answer_weight="adaptive-paper").weight_at(searches) == min(searches / 2, 1), "v2: V_B = 2"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LLDS(coef=-0.1), "LLDS(coef=-0.1) must be 0 or more"),
        (lambda: LLDS(gate="word"), "LLDS(gate='word') must be 'action', 'response' or 'token'"),  # type: ignore[arg-type]
        (lambda: LLDS(answer_weight=5), "LLDS(answer_weight=5) must be 1 or less, or 'adaptive-paper' or 'adaptive-"),
        (lambda: SAPO(tau=0), "SAPO(tau=0) must be more than 0"),
        (lambda: LLDS(0.5), "LLDS(0.5): name the setting, as in LLDS(coef=0.5)"),  # type: ignore[misc]
        (lambda: NLL(coeff=0.5), "NLL(coeff=0.5): there is no such argument; did you mean coef?"),  # type: ignore[call-arg]
        (lambda: LLDS(answer_weight="adaptive-code", answer_target=1.0), "loss.penalty.answer_target = 1.0 with "),
        (lambda: LLDS(answer_base=0.5), "loss.penalty.answer_base = 0.5 with loss.penalty.answer_weight = 1.0: only a"),
        (lambda: LLDS(coef=-1, threshold=-1), "LLDS(coef=-1) must be 0 or more; LLDS(threshold=-1) must be 0 or more"),
    ],
)
def test_an_argument_that_cannot_work_is_a_sentence(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value).startswith(said)


def test_a_value_does_not_change_and_can_be_a_key() -> None:
    with pytest.raises(Exception, match="frozen"):
        LLDS().coef = 0.5  # type: ignore[misc]
    assert {LLDS(): 1}[LLDS(coef=0.2)] == 1


# ---- a class of the user's own

HINGE = """
import torch
from holdfast.methods.penalties import Penalty

class Hinge(Penalty):
    coef: float = 0.3
    margin: float = 0.1

    def per_token(self, logprobs, old_logprobs, advantages, loss_mask, *, preserved, **_):
        return VALUE
"""
VALUE = "torch.where(preserved, (old_logprobs.detach() - logprobs - self.margin).clamp(min=0), 0.0)"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """write(source): the module's name; every call makes another module."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(source: str) -> str:
        name = f"own_{tmp_path.name.replace('-', '_')}_{len(list(tmp_path.iterdir()))}"
        (tmp_path / f"{name}.py").write_text(source)
        return name

    return make


def test_it_is_imported_and_made_once(write: Write) -> None:
    path = f"{write(HINGE.replace('VALUE', VALUE))}:Hinge"
    words = ["--loss.penalty.name=custom", f"--loss.penalty.path={path}", "--loss.penalty.settings=margin = 0.5"]
    custom = load(overrides=[*words, "--loss.penalty.coef=0.7"]).loss.penalty
    term = custom.term
    assert isinstance(term, Penalty) and custom.term is term
    assert (type(term).__name__, term.coef, term.margin) == ("Hinge", 0.7, 0.5)  # type: ignore[attr-defined]
    assert CustomPenalty(path=path).term.coef == 0.3
    assert custom == load(overrides=[*words, "--loss.penalty.coef=0.7"]).loss.penalty  # made or not


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise OSError('no disk')", "cannot be imported (OSError: no disk)"),
        ("raise SystemExit(3)", "cannot be imported (SystemExit: 3)"),
        ("def hinge(): ...", "has no Hinge; did you mean hinge?"),
        ("Hinge = 3", "is not a penalty: derive the class from holdfast.penalties.Penalty"),
        ("class Hinge: ...", "is not a penalty"),
        ("from holdfast.methods.penalties import Penalty\nclass Hinge(Penalty): ...", "lacks the method per_token"),
        (HINGE.replace("coef: float = 0.3", ""), "Hinge() needs coef: it has no default"),
        (HINGE.replace("VALUE", "logprobs.no_such()"), "Hinge fails on a batch of two rollouts (AttributeError: "),
        (
            HINGE.replace("VALUE", "(old_logprobs - logprobs).sum()"),
            "must return a float32 tensor [B, T], here [2, 6]; ",
        ),
        (HINGE.replace("VALUE", "preserved"), "it returned bool [2, 6]"),
        (HINGE.replace("VALUE", "None"), "it returned NoneType None"),
        (HINGE.replace("VALUE", "old_logprobs - logprobs"), "is not 0 outside the loss mask"),
        (HINGE.replace("VALUE", VALUE.replace("- logprobs", "- logprobs.detach()")), "without a gradient"),
        (HINGE.replace("VALUE", VALUE.replace("0.0)", "0.0) * float('nan')")), "NaN or infinity"),
        (
            HINGE.replace("VALUE", VALUE) + "\n    def weight_at(self, mean_valid_searches): raise KeyError('depth')",
            "Hinge fails on a batch of two rollouts (KeyError: 'depth')",
        ),
        (
            HINGE.replace("VALUE", VALUE) + "\n    def preserved(self, advantages, *_): return advantages > 0",
            "Hinge.preserved must return a bool tensor [B, T], here [2, 6]; it returned bool [2, 1]",
        ),
    ],
)
def test_one_that_cannot_work_is_a_sentence(write: Write, source: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        assert CustomPenalty(path=f"{write(source)}:Hinge").term
    assert said in str(caught.value) and str(caught.value).startswith("loss.penalty: ")
    assert "\n" not in str(caught.value)


def test_the_working_directory_is_searched(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry not in ("", str(tmp_path))])
    name = write(HINGE.replace("VALUE", VALUE))
    with pytest.raises(ConfigError, match="beside the recipe"):
        assert CustomPenalty(path=f"{name}:Hinge").term
    monkeypatch.chdir(tmp_path)
    assert CustomPenalty(path=f"{name}:Hinge").term


def test_a_recipe_with_code_is_read_without_it() -> None:
    """`holdfast diagnose` or `ask` reads the recipe of a run made elsewhere."""
    config = load(overrides=["--loss.penalty.name=custom", "--loss.penalty.path=no_such_module:Hinge"])
    assert json.loads(config.model_dump_json())["loss"]["penalty"]["path"] == "no_such_module:Hinge"
