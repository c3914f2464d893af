"""Run a script with vLLM on a CPU: `python on_cpu.py train.py [ARGUMENTS]`. A GPU needs none of this.

The variables are documented by vLLM. Two more things are not:

* vLLM packs the weights of linear layers for oneDNN and leaves the parameters empty, so that new weights cannot
  be loaded into them. `_supports_onednn = False` keeps them.
* vLLM looks for kernels in the `__dict__` of whatever has been imported. That of llvmlite's library, which numba
  brings where bm25s is imported, is looked up as a C function and found.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys

VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_CI_ENV": "1",  # no warm-up of compiled kernels
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in the trainer's process
}


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def prepare() -> None:
    """Before vLLM makes its first model."""
    os.environ.update(VARIABLES)
    os.environ["MASTER_PORT"] = str(free_port())  # accelerate takes 29500 on a CPU, be it free or not
    import vllm._custom_ops as ops
    from llvmlite.binding import ffi

    ops._supports_onednn = False
    library = type(ffi.lib)
    function = library.__getattr__

    def functions_only(self: object, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return function(self, name)

    library.__getattr__ = functions_only


if __name__ == "__main__":
    prepare()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.getcwd())
    runpy.run_path(sys.argv[0], run_name="__main__")
