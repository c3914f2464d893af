"""Runs at a service by their addresses: `wandb://entity/project/run`, `mlflow://run`, `trackio://project/run`.

W&B and MLflow are queried through their own packages, which the extra `track` installs and which know the user's keys
and servers. trackio keeps its databases on the local machine, where they are read as files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.base.errors import DataError
from holdfast.base.importing import optional
from holdfast.diagnose.readers.database import DATABASE, mlflow_run
from holdfast.diagnose.readers.reader import LogFile, Raw, dotted, read_rows
from holdfast.diagnose.readers.text import Tally

_PAGE = re.compile(r"https?://[^/]*wandb[^/]*/([^/]+)/([^/]+)/runs/([^/?#]+)")
_FORMS = (
    "wandb://ENTITY/PROJECT/RUN, mlflow://RUN or mlflow://HOST:PORT/RUN (RUN is the run's id), trackio://PROJECT or "
    "trackio://PROJECT/RUN"
)


def is_address(path: str | Path) -> bool:
    """Whether it is the address of a service.

    >>> is_address("wandb://team/project/abcd1234"), is_address("runs/quickstart"), is_address("C:/runs")
    (True, False, False)
    """
    return re.match(r"[a-z]{2,}:/{1,2}[^/]", str(path)) is not None and not Path(path).exists()


def read_service(address: str) -> list[Raw]:
    """The runs at an address. Raises `DataError` for one that cannot be read, `MissingExtra` without the package."""
    if page := _PAGE.match(address):
        address = f"wandb://{'/'.join(page.groups())}"
    scheme, _, rest = address.partition(":")
    parts = [part for part in rest.split("/") if part]
    reader = {"wandb": _wandb, "mlflow": _mlflow, "trackio": _trackio}.get(scheme)
    if reader is None or not 1 <= len(parts) <= 3:
        raise DataError(f"holdfast cannot read the address {address}. It can read {_FORMS}")
    return [raw for raw in reader(address, parts) if raw.columns]


def _asked(address: str, ask: Callable[[], Any], hint: str) -> Any:
    """What a service answers; its refusals, of whatever kind, as one sentence."""
    try:
        return ask()
    except Exception as error:  # the clients raise their own errors, those of requests, and OSError
        why = str(error).strip().splitlines()
        raise DataError(f"{address} cannot be read: {why[0] if why else type(error).__name__}", hint=hint) from None


def _wandb(address: str, parts: list[str]) -> list[Raw]:
    wandb = optional("wandb", "track")
    hint = "Run `wandb login`, or set WANDB_API_KEY; the address is wandb://ENTITY/PROJECT/RUN, with the run's id"
    tally = Tally(Path(address), "row")
    run = _asked(address, lambda: wandb.Api().run("/".join(parts)), hint)
    config = dotted({name: value for name, value in dict(run.config).items() if not name.startswith("_")})
    return _asked(  # type: ignore[no-any-return]
        address,
        lambda: read_rows(
            enumerate(map(dict, run.scan_history()), 1), tally, str(run.name), form="wandb", settings=config
        ),
        hint,
    )


def _mlflow(address: str, parts: list[str]) -> list[Raw]:
    tracking = optional("mlflow.tracking", "track", "mlflow")
    hint = "Set MLFLOW_TRACKING_URI to the server; the address is mlflow://RUN, with the run's id"
    # Otherwise it tries for minutes to reach a server that is down.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    *server, name = parts
    client = _asked(address, lambda: tracking.MlflowClient(f"http://{server[0]}" if server else None), hint)
    run = _asked(address, lambda: client.get_run(name), hint)
    histories = (client.get_metric_history(name, metric) for metric in run.data.metrics)
    logged = _asked(address, lambda: [value for history in histories for value in history], hint)
    timed = ((one.timestamp, (k, one.key, int(one.step), float(one.value))) for k, one in enumerate(logged, 1))
    params = {key: str(value) for key, value in run.data.params.items()}
    return [mlflow_run(timed, str(run.info.run_name or name), params, Tally(Path(address), "value"))]


def _trackio(address: str, parts: list[str]) -> list[Raw]:
    project, *run = parts
    cache = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "huggingface")
    folder = Path(os.environ.get("TRACKIO_DIR") or Path(cache, "trackio"))
    path = folder / ("".join(letter for letter in project if letter.isalnum() or letter in "-_") + ".db")
    if not path.is_file():
        raise DataError(f"{address} cannot be read: {path} does not exist", hint="Set TRACKIO_DIR to trackio's folder")
    raws = DATABASE.read(LogFile(DATABASE, path, path.stem), Tally(path))
    chosen = [raw for raw in raws if not run or raw.name == run[0]]
    if not chosen:
        names = ", ".join(raw.name for raw in raws[:10])
        raise DataError(f"{address} cannot be read: the project has no run of this name. It has: {names}")
    return chosen
