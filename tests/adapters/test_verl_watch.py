"""A run of verl that has lost a worker is ended. The command and its workers are stand-ins with the titles of Ray and
vLLM; with Ray itself, and engines of vLLM, it is tested in tests/engines/verl."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.adapters.verl_watch import WORKER

from ..waiting import wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="needs /proc")

COMMAND = """
import subprocess, sys, time
from pathlib import Path

def start(title):
    return subprocess.Popen(["bash", "-c", f"exec -a '{title}' sleep 600"], start_new_session=True)

engine, other = start("VLLM::EngineCore"), start("ray::IDLE")
while not Path(f"/proc/{engine.pid}/cmdline").read_bytes().startswith(b"VLLM"):
    time.sleep(0.01)
Path("pids").write_text(f"{engine.pid} {other.pid}")
"""
WAITS = "time.sleep(600)"
WATCH = """
import sys
from pathlib import Path
from holdfast.adapters import verl_watch
look = verl_watch.family

def noted(pid):
    found = look(pid)
    with Path("looks").open("a") as file:
        file.write(f"{sorted(found.values())}\\n")
    return found

verl_watch.family = noted
sys.exit(verl_watch.run([sys.executable, "command.py"], pause=0.1, patience=float(sys.argv[1])))
"""
Watched = Callable[..., tuple[subprocess.Popen[bytes], list[int]]]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """watched(code, patience): a watched command that has started two processes, and their ids."""
    started: list[tuple[subprocess.Popen[bytes], list[int]]] = []

    def start(code: str, patience: float) -> tuple[subprocess.Popen[bytes], list[int]]:
        (tmp_path / "command.py").write_text(COMMAND + textwrap.dedent(code))
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen([sys.executable, "-c", WATCH, str(patience)], cwd=tmp_path, stderr=said)
        pids = wait_for(lambda: (tmp_path / "pids").read_text().split(), minutes=2, process=process)
        started.append((process, [int(pid) for pid in pids]))
        wait_for(lambda: "'VLLM::EngineCore" in looks(tmp_path)[-1], minutes=2, process=process)
        return started[-1]

    yield start
    for process, pids in started:
        for pid in (process.pid, *pids):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def looks(folder: Path) -> list[str]:
    """What each look has found."""
    path = folder / "looks"
    return path.read_text().splitlines() if path.is_file() else [""]


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def test_a_worker_that_dies_ends_the_run_and_all_of_its_processes(watched: Watched, tmp_path: Path) -> None:
    process, (engine, other) = watched(WAITS, 0.5)
    os.kill(engine, signal.SIGKILL)
    assert process.wait(120) == 1
    said = (tmp_path / "said").read_text()
    assert "holdfast: VLLM::EngineCore died, and verl would wait forever" in said
    wait_for(lambda: not is_alive(other), minutes=1)


def test_another_process_that_dies_ends_nothing(watched: Watched, tmp_path: Path) -> None:
    process, (_, other) = watched(
        "other.wait()\nPath('on').touch()\nwhile not Path('end').exists(): time.sleep(0.05)\nsys.exit(7)", 0.1
    )
    os.kill(other, signal.SIGKILL)
    wait_for((tmp_path / "on").exists, minutes=1, process=process)
    before = len(looks(tmp_path))
    wait_for(lambda: len(looks(tmp_path)) > before + 5, minutes=1, process=process)
    (tmp_path / "end").touch()
    assert process.wait(120) == 7 and "died" not in (tmp_path / "said").read_text()


def test_a_run_that_ends_by_itself_keeps_its_code(watched: Watched, tmp_path: Path) -> None:
    """At its end every worker dies before the command does."""
    process, (engine, _) = watched("engine.wait()\ntime.sleep(1)\nsys.exit(3)", 600)
    os.kill(engine, signal.SIGKILL)
    assert process.wait(120) == 3 and "died" not in (tmp_path / "said").read_text()


def test_a_signal_reaches_the_command(watched: Watched, tmp_path: Path) -> None:
    process, _ = watched(WAITS, 600)
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("title", "watched_for"),
    [
        ("VLLM::EngineCore_DP0", "VLLM::EngineCore_DP0"),
        ("VLLM::Worker_TP1", "VLLM::Worker_TP1"),
        ("ray::vLLMHttpServer.generate", "ray::vLLMHttpServer"),
        ("ray::AgentLoopWorkerTQ.generate_sequences", "ray::AgentLoopWorkerTQ"),
        ("ray::IDLE", None),
        ("ray::SPILL_SpillWorker", None),
        ("python3 -m verl.trainer.main_ppo", None),
    ],
)
def test_what_counts_as_a_worker(title: str, watched_for: str | None) -> None:
    """Ray ends idle workers by itself, and starts others."""
    found = WORKER.match(title)
    assert (found and found[0]) == watched_for
