"""What a byte a dimension costs in order, and what building such an index takes in memory.

    python benchmarks/retrieval_sq8.py --rows 500000 --dimensions 768

Vectors of length 1 in clusters; a query is a vector of the collection, moved a little. The three best by the codes are
compared with the three best of exact search in half precision. The index is built in a process of its own, whose
resident memory is read before (everything is imported) and at its peak.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from holdfast.retrieval.arrays import NpyWriter
from holdfast.retrieval.building import Unwatched
from holdfast.retrieval.exact import ExactSearch
from holdfast.retrieval.sq8 import CHUNK_ROWS, SQ8Search, write_sq8
from measuring import memory_mb, peak_memory_mb, table, write_json


def make(path: Path, rows: int, dimensions: int, clusters: int, spread: float, rng: np.random.Generator) -> None:
    centres = rng.standard_normal((clusters, dimensions), np.float32)
    with NpyWriter(path, np.float16, (rows, dimensions)) as out:
        for first in range(0, rows, 10_000):
            count = min(10_000, rows - first)
            own = centres[rng.integers(0, clusters, count)]
            own = own + spread * rng.standard_normal((count, dimensions), np.float32)
            out.write(own / np.linalg.norm(own, axis=1, keepdims=True))


def build(vectors: Path, out: Path) -> None:
    """In the process of its own: prints what it needed."""
    warm = out.with_name("warm.npy")
    np.save(warm, np.zeros((2, 8), np.float16))
    write_sq8(warm, out.with_name("warm.faiss"), Unwatched())
    before, began = memory_mb(), time.perf_counter()
    write_sq8(vectors, out, Unwatched())
    print(json.dumps({"before": before, "peak": peak_memory_mb(), "seconds": time.perf_counter() - began}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument("--clusters", type=int, default=5_000)
    parser.add_argument("--spread", type=float, default=0.5, help="of a cluster; its centre has length 1 per dimension")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.1, 0.5], help="of a query, likewise")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--json", help="write the raw numbers there")
    parser.add_argument("--build", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(*options.build)
        return
    rng = np.random.default_rng(0)
    rows, raw = [], {}
    with tempfile.TemporaryDirectory() as folder:
        path, quantised = Path(folder) / "vectors.npy", Path(folder) / "sq8.faiss"
        make(path, options.rows, options.dimensions, options.clusters, options.spread, rng)
        command = [sys.executable, __file__, "--build", str(path), str(quantised)]
        made = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        index, chunk = quantised.stat().st_size / 2**20, CHUNK_ROWS * options.dimensions * 4 / 2**20
        print(f"index {index:.0f} MiB, chunk {chunk:.0f} MiB, built in {made['seconds']:.0f} s")
        print(f"resident before {made['before']:.0f} MiB, at its peak {made['peak']:.0f} MiB")
        print(f"bound: before + 1.2 × index + one chunk = {made['before'] + 1.2 * index + chunk:.0f} MiB")
        vectors = np.asarray(np.load(path, mmap_mode="c"))
        exact, small = ExactSearch(vectors, torch.device("cpu")), SQ8Search(quantised)
        for noise in options.noise:
            chosen = vectors[np.sort(rng.choice(options.rows, options.queries, replace=False))].astype(np.float32)
            length = np.sqrt(options.dimensions)
            queries = chosen * length + noise * rng.standard_normal(chosen.shape, np.float32)
            queries = np.ascontiguousarray(queries / np.linalg.norm(queries, axis=1, keepdims=True))
            pairs = zip(exact.best(queries, 10), small.best(queries, 10), strict=True)
            both = [(one.rows.tolist(), other.rows.tolist()) for one, other in pairs]
            recalls = [float(np.mean([len({*a[:k]} & {*b[:k]}) / k for a, b in both])) for k in (1, 3, 10)]
            rows.append([f"{noise}", *(f"{recall:.4f}" for recall in recalls)])
            raw[str(noise)] = recalls
        print(table(["noise of a query", "recall@1", "recall@3", "recall@10"], rows))
        write_json(options.json, {"recall": raw, "build": made, "index_mib": index, "chunk_mib": chunk})


if __name__ == "__main__":
    main()
