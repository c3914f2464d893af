"""What `holdfast doctor` says where a host is missing, too old, or installed without its plugin."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.base.tested import TESTED, between
from holdfast.cli import doctor

Run = Callable[..., Any]
PLUGIN = EntryPoint("holdfast", "holdfast.adapters.verl", "verl.plugins")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """installed(verl="0.9.1"): these hosts and versions, and no others."""

    def pretend(*, plugin: bool = True, **versions: str) -> None:
        monkeypatch.setattr(doctor, "installed_version", versions.get)
        monkeypatch.setattr(
            doctor, "entry_points", lambda group: [PLUGIN] if plugin and group == "verl.plugins" else []
        )

    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    monkeypatch.delenv("VERL_USE_EXTERNAL_MODULES", raising=False)
    return pretend


def test_without_a_host_it_teaches(holdfast: Run, installed: Callable[..., None]) -> None:
    installed(trl="1.16.0")
    text = holdfast("doctor").stdout
    assert "TRL's GRPOTrainer: 1.16.0 is installed: run `holdfast doctor trl`" in text
    assert "verl on Ray: not installed" in text


@pytest.mark.parametrize("host", ["trl", "verl", "unsloth", "prime-rl", "slime"])
def test_a_host_that_is_not_there(holdfast: Run, installed: Callable[..., None], host: str) -> None:
    installed()
    text = holdfast("doctor", host, code=1).stdout
    assert text.startswith("PROBLEM  ") and host in text and "installed" in text


@pytest.mark.parametrize(
    ("host", "versions", "named"),
    [
        ("trl", {"trl": "1.14.0"}, "1.15"),
        ("verl", {"verl": "0.7.1"}, "0.8 or newer. Run: pip install 'verl==0.9.*'"),
        ("prime-rl", {"prime-rl": "0.7.0"}, "0.8"),
        ("verl", {"verl": "0.9.1", "vllm": "0.17.1"}, "vllm>=0.18"),
        ("unsloth", {"unsloth": "2026.10.9", "unsloth_zoo": "2026.9.1", "trl": "1.16.0"}, "2026.10"),
        ("unsloth", {"unsloth": "2026.10.9", "unsloth_zoo": "2026.10.9", "trl": "0.24.0"}, "1.15"),
    ],
)
def test_a_version_that_is_not_supported(
    holdfast: Run, installed: Callable[..., None], host: str, versions: dict[str, str], named: str
) -> None:
    installed(plugin=False, **versions)
    assert any(named in line for line in holdfast("doctor", host, code=1).stdout.splitlines() if "PROBLEM" in line)


@pytest.mark.parametrize(
    ("host", "versions"),
    [
        ("trl", {"trl": "1.18.2"}),
        ("unsloth", {"unsloth": "2026.12.1", "unsloth_zoo": "2026.12.1", "trl": "1.16.0"}),
        ("slime", {"miles": "0.4.0"}),
    ],
)
def test_a_version_that_is_newer_than_tested_is_noted(
    holdfast: Run, installed: Callable[..., None], host: str, versions: dict[str, str]
) -> None:
    installed(**versions)
    text = holdfast("doctor", host).stdout
    (package,) = (name for name in versions if name in TESTED and between(versions[name], TESTED[name].untested))
    assert f"ok       note: {package} {versions[package]} is newer than {TESTED[package].newest}, " in text
    assert ("they may be corrected twice" in text) is (host == "trl")


def test_trl_is_told_about_the_schedule_and_the_sampler(holdfast: Run, installed: Callable[..., None]) -> None:
    installed(trl="1.16.0", transformers="5.20.0")
    text = holdfast("doctor", "trl").stdout
    assert "ok       trl 1.16.0, transformers 5.20.0" in text
    assert "set steps_per_generation to the old value of gradient_accumulation_steps" in text
    assert "top_k=512 or less, and pass with_penalties(..., mask_logprobs=True)" in text


@pytest.mark.parametrize(
    ("plugin", "environment", "good", "sentence"),
    [
        (True, {}, True, "verl loads holdfast by its entry point"),
        (True, {"VERL_USE_EXTERNAL_PLUGINS": "other, holdfast"}, True, "verl loads holdfast by its entry point"),
        (True, {"VERL_USE_EXTERNAL_PLUGINS": "none"}, False, "VERL_USE_EXTERNAL_PLUGINS=none keeps verl from loading"),
        (False, {}, False, "declares no verl plugin; install it again"),
        (False, {"VERL_USE_EXTERNAL_MODULES": "a,holdfast.adapters.verl"}, True, "because VERL_USE_EXTERNAL_MODULES"),
    ],
)
def test_how_verl_finds_us(
    installed: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    plugin: bool,
    environment: dict[str, str],
    good: bool,
    sentence: str,
) -> None:
    installed(verl="0.9.1", plugin=plugin)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    ((found, text),) = doctor._plugin_lines(has_plugins=True)
    assert found is good and sentence in text


def test_a_verl_that_cannot_be_imported_is_said(
    holdfast: Run, installed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    installed(verl="0.9.1", transformers="5.10.4")
    absent = ("cachetools", "transfer_queue")
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in absent else SimpleNamespace())
    monkeypatch.setitem(sys.modules, "holdfast.adapters.verl", None)  # as if its import failed
    text = holdfast("doctor", "verl", code=1).stdout
    assert "PROBLEM  cachetools, TransferQueue missing, which verl's trainer or its agent loops need." in text
    assert "Run: pip install cachetools TransferQueue\n" in text
    assert "PROBLEM  holdfast.adapters.verl cannot be imported: " in text


LOSS = ("--loss-type", "custom_loss", "--custom-loss-function-path", "holdfast.adapters.slime.loss")
SIZES = ("--rollout-batch-size", "32", "--n-samples-per-prompt", "8", "--global-batch-size")


@pytest.mark.parametrize(
    ("options", "section", "code", "sentence"),
    [
        ((), None, 0, "ok optimizer steps per rollout batch = --num-steps-per-rollout"),
        ((*LOSS, *SIZES, "64", "--lr", "1e-6"), {}, 0, "ok optimizer steps per rollout batch: 4"),
        ((*LOSS, *SIZES, "256"), {}, 1, "PROBLEM there is one optimizer step per rollout batch"),
        ((*LOSS, *SIZES, "256"), {"name": "nll"}, 0, "ok the loss is valid: NLL(coef=0.1, "),
        ((*LOSS, *SIZES, "256"), None, 0, "ok the loss is valid: no penalty, observing"),
        ((*LOSS, "--num-steps-per-rollout", "4"), {"gata": 1}, 1, "PROBLEM holdfast_penalty: "),
        ((*LOSS, *SIZES, "64", "--context-parallel-size", "2"), {}, 0, "ok optimizer steps per rollout batch: 4"),
        (
            (*LOSS, *SIZES, "64", "--context-parallel-size", "2", "--qkv-format", "bshd"),
            {},
            1,
            "PROBLEM --qkv-format bshd with --context-parallel-size 2",
        ),
        (("--num-steps-per-rollout", "4"), {}, 1, "PROBLEM this is not holdfast's loss."),
    ],
)
def test_the_options_of_slime(
    holdfast: Run,
    installed: Callable[..., None],
    tmp_path: Path,
    options: tuple[str, ...],
    section: dict[str, Any] | None,
    code: int,
    sentence: str,
) -> None:
    pytest.importorskip("yaml")
    installed(slime="0.3.1")
    path = tmp_path / "holdfast.yaml"
    if section is not None:
        path.write_text(json.dumps({"holdfast_penalty": section or {"coef": 0.2}}))
        options = (*options, "--custom-config-path", str(path))
    text = " ".join(holdfast("doctor", "slime", *options, code=code).stdout.split())
    assert sentence in text
