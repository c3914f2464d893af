"""Runs a command of verl, and ends it if one of its workers dies. `run.sh` of `holdfast launch verl` begins with it:

    python3 -m holdfast.adapters.verl_watch python3 -m verl.trainer.main_ppo …

When vLLM's engine or a worker of the agent loops is killed, verl 0.9 waits for its rollouts for ever. So this looks at
the processes that the command started on this machine, by their titles. If a worker is gone, and the command has not
ended a minute later by itself, all of them are killed, and the exit code is 1.

Not seen: workers on other machines, and those of a Ray that was started before (`ray start`). Without /proc nothing is
looked at.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

WORKER = re.compile(r"VLLM::\w+|ray::(?:vLLMHttpServer|SGLangHttpServer|AgentLoopWorker|WorkerDict|TaskRunner)\w*")
"""The title of a process without which a run of verl cannot go on, and which lives as long as the run."""


class Process(NamedTuple):
    """A process; another one may get its number later, but not its start."""

    pid: int
    start: str


def family(root: int) -> dict[Process, str]:
    """The processes that descend from one, and their titles, without those that have ended."""
    parents: dict[Process, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            state, parent, *more = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                parents[Process(int(entry.name), more[17])] = int(parent)
    found: set[Process] = set()
    ancestors = {root}
    while ancestors:
        children = {process for process, parent in parents.items() if parent in ancestors} - found
        found |= children
        ancestors = {process.pid for process in children}
    return {process: title for process in found if (title := _title(process.pid))}


def _title(pid: int) -> str:
    """Empty if it has ended meanwhile."""
    with suppress(OSError):
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def run(command: Sequence[str], *, pause: float = 5.0, patience: float = 60.0) -> int:
    """Run a command, and return its exit code as a shell would; 1 if it was ended because it had lost a worker.

    Args:
        command: the program and its arguments.
        pause: seconds from one look to the next.
        patience: seconds that a command without one of its workers has to end by itself.
    """
    command_process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, lambda *_: None)  # of a terminal, and so the command's too: its end is waited for
    signal.signal(signal.SIGTERM, lambda *_: command_process.terminate())
    seen: dict[Process, str] = {}
    while (code := _code_within(command_process, pause)) is None:
        alive = family(command_process.pid)
        seen |= alive
        lost = [match[0] for process in seen.keys() - alive.keys() if (match := WORKER.match(seen[process]))]
        if lost and (code := _code_within(command_process, patience)) is None:
            doomed = seen | family(command_process.pid)
            command_process.kill()
            for process in doomed:
                _kill(process)
            print(
                f"holdfast: {' and '.join(sorted(lost))} died, and verl would wait forever, so the run was ended. "
                "What it printed before says more. The same command continues from the newest checkpoint",
                file=sys.stderr,
            )
            return 1
        if code is not None:
            break
    return code if code >= 0 else 128 - code


def _code_within(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    with suppress(subprocess.TimeoutExpired):
        return process.wait(seconds)
    return None


def _kill(process: Process) -> None:
    with suppress(OSError):
        stat = (Path("/proc") / str(process.pid) / "stat").read_text().rpartition(")")[2].split()
        if stat[19] == process.start:
            os.kill(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
