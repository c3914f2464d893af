"""Benchmarks are scripts beside the package, run as a user runs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))  # they import each other by name

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run() -> Run:
    """`run("name.py", *options)` in a process of its own, on one thread."""

    def run(name: str, *options: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(BENCHMARKS / name), *map(str, options)]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})

    return run
