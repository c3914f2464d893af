"""Run a script with vLLM on a CPU: `python on_cpu.py train.py [ARGUMENTS]`.

A GPU needs none of this. The variables are documented by vLLM. `_supports_onednn` is not: on a CPU vLLM packs the
weights of linear layers for oneDNN and leaves the parameters empty, so that new weights cannot be loaded into them.
"""

from __future__ import annotations

import os
import runpy
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


def prepare() -> None:
    """Before vLLM makes its first model."""
    os.environ.update(VARIABLES)
    import vllm._custom_ops as ops

    ops._supports_onednn = False


if __name__ == "__main__":
    prepare()
    sys.argv = sys.argv[1:]
    sys.path.insert(0, os.getcwd())
    runpy.run_path(sys.argv[0], run_name="__main__")
