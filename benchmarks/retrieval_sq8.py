"""What a byte a dimension costs in order, and what building such an index takes in memory.

    python benchmarks/retrieval_sq8.py --rows 500000 --dimensions 768

Vectors of length 1 in clusters: centres of variance 1 a dimension, members of variance spread² around them (cosine of
two members 1 / (1 + spread²)). A query is a vector of the collection, moved by noise of that deviation. Exact search in
half precision is compared with the codes alone, and with the whole search, in which the codes choose and the vectors
decide. The index is built in a process of its own, whose resident memory is read before (everything is imported) and at
its peak. Needs Linux.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import faiss
import numpy as np
import torch

from holdfast.retrieval.dense import ExactSearch, SQ8Search
from holdfast.retrieval.dense_building import SQ8_CHUNK_ROWS, write_sq8
from holdfast.train.listener import Listener
from measuring import memory_mb, table, write_json


def make(path: Path, rows: int, dimensions: int, clusters: int, spread: float, rng: np.random.Generator) -> None:
    centres = rng.standard_normal((clusters, dimensions), np.float32)
    out = np.lib.format.open_memmap(path, "w+", np.float16, (rows, dimensions))
    for first in range(0, rows, 10_000):
        count = min(10_000, rows - first)
        vectors = centres[rng.integers(0, clusters, count)]
        vectors = vectors + spread * rng.standard_normal((count, dimensions), np.float32)
        out[first : first + count] = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build(path: Path, out: Path) -> None:
    """In the process of its own: prints what it needed."""
    vectors = np.load(path, mmap_mode="r")
    write_sq8(np.zeros((2, 8), np.float16), out.with_name("warm.faiss"), Listener())
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far was that of the imports
    before, began = memory_mb(), time.perf_counter()
    write_sq8(vectors, out, Listener())
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps({"before": before, "peak": int(peak.split()[1]) / 2**10, "seconds": time.perf_counter() - began}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimensions", type=int, default=768)
    parser.add_argument(
        "--sets", nargs="+", default=["5000x1.0", "5000x0.5", "100000x0.5"], help="clusters × spread of each collection"
    )
    parser.add_argument("--noise", type=float, nargs="+", default=[0.1, 0.5], help="of a query, likewise")
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--json", help="write the raw numbers there")
    parser.add_argument("--build", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.build:
        build(*options.build)
        return
    rows, raw = [], {}
    for name in options.sets:
        clusters, spread = int(name.split("x")[0]), float(name.split("x")[1])
        with tempfile.TemporaryDirectory() as folder:
            build_report, recalls = measure(Path(folder), options, clusters, spread)
        raw[name] = {"build": build_report, "recalls": recalls}
        for noise, cells in recalls.items():
            rows.append([f"{options.rows // clusters} in a cluster, spread {spread}, noise {noise}", *cells])
    print(table(["", "codes @3", "recall@1", "recall@3", "recall@10", "exact ms/query", "sq8 ms/query"], rows))
    write_json(options.json, raw)


def recall(right: list[list[int]], ranked: list[list[int]], k: int) -> float:
    """The share of the first `k` that is among the first `k` found."""
    return float(np.mean([len({*a[:k]} & {*b[:k]}) / k for a, b in zip(right, ranked, strict=True)]))


def measure(
    folder: Path, options: argparse.Namespace, clusters: int, spread: float
) -> tuple[dict[str, float], dict[float, list[str]]]:
    """What the build needed; per noise of a query the recalls and milliseconds."""
    rng = np.random.default_rng(0)
    path, quantised = folder / "vectors.npy", folder / "sq8.faiss"
    make(path, options.rows, options.dimensions, clusters, spread, rng)
    command = [sys.executable, __file__, "--build", str(path), str(quantised)]
    build_report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    index, chunk = quantised.stat().st_size / 2**20, SQ8_CHUNK_ROWS * options.dimensions * 4 / 2**20
    print(f"index {index:.0f} MiB, one chunk {chunk:.0f} MiB, built in {build_report['seconds']:.0f} s")
    print(
        f"peak memory less imports {build_report['peak'] - build_report['before']:.0f} MiB, pages of the vectors "
        "included"
    )
    vectors = np.asarray(np.load(path, mmap_mode="c"))
    codes = faiss.read_index(str(quantised))
    exact, small = ExactSearch(vectors, torch.device("cpu")), SQ8Search(quantised, vectors)
    recalls: dict[float, list[str]] = {}
    for noise in options.noise:
        chosen = vectors[np.sort(rng.choice(options.rows, options.queries, replace=False))].astype(np.float32)
        # A member has variance 1 + spread² a dimension before it is scaled to length 1.
        scale = np.sqrt(options.dimensions * (1 + spread**2))
        queries = chosen * scale + noise * rng.standard_normal(chosen.shape, np.float32)
        queries = (queries / np.linalg.norm(queries, axis=1, keepdims=True)).astype(np.float32)
        began = time.perf_counter()
        right = [ranked.rows.tolist() for ranked in exact.best(queries, 10)]
        middle = time.perf_counter()
        whole = [ranked.rows.tolist() for ranked in small.best(queries, 10)]
        ended = time.perf_counter()
        _, alone = codes.search(queries, 10)
        shares = [recall(right, alone.tolist(), 3), *(recall(right, whole, k) for k in (1, 3, 10))]
        per_query = [1000 * seconds / options.queries for seconds in (middle - began, ended - middle)]
        recalls[noise] = [*(f"{share:.4f}" for share in shares), *(f"{ms:.1f}" for ms in per_query)]
    return build_report, recalls


if __name__ == "__main__":
    main()
