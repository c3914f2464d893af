"""Runs at services, with clients that have the documented interfaces of the real ones."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from holdfast.base.errors import DataError, MissingExtra
from holdfast.diagnose.readers import read_log, read_logs

from .conftest import LOGS, SETTINGS, STEPS, tracked


def rewards() -> list[float]:
    return [row["train/reward"] for _, row in tracked()]


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A client of W&B; the runs that were asked for."""
    asked: list[str] = []

    class Run:
        name = "calm-sun-1"
        config: ClassVar = {**SETTINGS, "_wandb": {}, "actor": {"lr": 0.1}}

        def scan_history(self) -> Iterator[dict[str, Any]]:
            for step, row in tracked():
                extra = {"_step": 3 * step, "_timestamp": 1.7e9, "train/global_step": step, "samples": None}
                yield {**{k: "NaN" if v != v else v for k, v in row.items()}, **extra}

    class Api:
        def run(self, path: str) -> Run:
            asked.append(path)
            if "missing" in path:
                raise ValueError(f"Could not find run <Run {path} (not found)>\nmore")
            return Run()

    module = ModuleType("wandb")
    module.Api = Api  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    return asked


@pytest.mark.parametrize(
    "address", ["wandb://team/searchers/abcd1234", "https://wandb.ai/team/searchers/runs/abcd1234?nw=nwuser"]
)
def test_a_run_at_wandb(wandb: list[str], address: str) -> None:
    log = read_log(address)
    assert wandb == ["team/searchers/abcd1234"]
    assert (log.name, log.format, log.host, log.notes) == ("calm-sun-1", "wandb", "trl", ())
    assert log.series["reward/mean"].steps.tolist() == list(range(1, STEPS + 1))
    assert log.series["reward/mean"].values.tolist() == rewards()
    assert log.settings == {**SETTINGS, "actor.lr": 0.1}


def test_what_wandb_refuses_is_one_sentence(wandb: list[str]) -> None:
    with pytest.raises(
        DataError, match=r"^wandb://team/searchers/missing cannot be read: Could not find run <Run "
    ) as e:
        read_log("wandb://team/searchers/missing")
    assert "\n" not in str(e.value) and "wandb login" in str(e.value.hint)


@pytest.mark.parametrize(("address", "package"), [("wandb://a/b/c", "wandb"), ("mlflow://abc", "mlflow")])
def test_a_package_that_is_not_installed(address: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.tracking", None)
    with pytest.raises(MissingExtra, match=rf"^{package} is not installed. Run: pip install 'holdfast-rl\[track\]'"):
        read_log(address)


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A client of MLflow; the servers and runs that were asked for."""
    asked: list[Any] = []

    class MlflowClient:
        def __init__(self, tracking_uri: str | None = None) -> None:
            asked.append(tracking_uri)

        def get_run(self, run_id: str) -> Any:
            asked.append(run_id)
            params = {name.replace(".", "/"): str(value) for name, value in SETTINGS.items()}
            data = SimpleNamespace(metrics={"train/reward": 0.0, "train/grad_norm": 0.0}, params=params)
            return SimpleNamespace(data=data, info=SimpleNamespace(run_name="calm-sun-1"))

        def get_metric_history(self, run_id: str, key: str) -> list[Any]:
            rows = list(tracked())
            return [SimpleNamespace(key=key, step=s, value=row[key], timestamp=s) for s, row in reversed(rows)]

    package, module = ModuleType("mlflow"), ModuleType("mlflow.tracking")
    module.MlflowClient = MlflowClient  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", package)
    monkeypatch.setitem(sys.modules, "mlflow.tracking", module)
    return asked


@pytest.mark.parametrize(
    ("address", "asked"), [("mlflow://abc", [None, "abc"]), ("mlflow://host:5000/abc", ["http://host:5000", "abc"])]
)
def test_a_run_at_mlflow(mlflow: list[Any], address: str, asked: list[Any]) -> None:
    log = read_log(address)
    assert mlflow == asked and log.name == "calm-sun-1" and log.settings == SETTINGS
    assert log.series["reward/mean"].values.tolist() == rewards() and log.notes == ()


def test_a_project_of_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    shutil.copy(LOGS / "trackio.db", tmp_path / "searchers.db")
    assert [log.name for log in read_logs("trackio://searchers")] == ["calm-sun-1", "wild-moon-2"]
    assert read_log("trackio://searchers/calm-sun-1").series["reward/mean"].values.tolist() == rewards()
    with pytest.raises(DataError, match=r"has no run of this name\. It has: calm-sun-1, wild-moon-2"):
        read_log("trackio://searchers/other")
    with pytest.raises(DataError, match=r"trackio://other cannot be read: .*other.db does not exist"):
        read_log("trackio://other")


@pytest.mark.parametrize("address", ["neptune://a/b", "wandb://a/b/c/d"])
def test_an_address_that_cannot_be_read(address: str) -> None:
    with pytest.raises(DataError, match=r"cannot read the address|does not exist"):
        read_log(address)
