"""The retriever that misbehaves is a benchmark's, which are scripts beside the package."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
