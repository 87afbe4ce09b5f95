"""Attention of one layer alone: each backend over the same batches, keys and values cold.

    python -m bench.attention --threads 1

Every call reads another of many caches, together larger than the CPU's own memory, as a step of a
model reads one layer after the other. The backends take turns within one run. Printed is the
fastest call, in microseconds, since what else the machine does can only add to it.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from model_server.attention.base import AttentionBackend, LayerOptions
from model_server.attention.select import select_backend
from model_server.engine.kv_cache import KVCache, LayerGeometry
from model_server.engine.step import SequenceStep, StepInputs

_CPU = torch.device("cpu")
_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
_NAMES = ("reference", "cpu", "cpu-op")
_COLD_BYTES = 200_000_000


@dataclass(frozen=True, slots=True)
class Workload:
    """A step: every sequence computes `query_len` tokens and attends to `context_len` keys."""

    batch_size: int
    query_len: int
    context_len: int


_DECODES = tuple(Workload(batch, 1, context) for batch in (1, 8, 32) for context in (256, 1024))
_PREFILLS = (Workload(8, 128, 128), Workload(1, 1024, 1024), Workload(1, 512, 4096))


@dataclass(frozen=True, slots=True)
class Shape:
    """A layer's heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class Row:
    """The fastest call of one backend, and the keys and values that it read in that time."""

    dtype: str
    workload: Workload
    backend: str
    min_us: float
    gigabytes_per_s: float


def measure(shape: Shape, dtype: torch.dtype, workload: Workload, num_rounds: int) -> list[Row]:
    """One workload by every backend that serves the shape, in turns."""
    geometry = LayerGeometry(shape.num_kv_heads, shape.head_dim, shape.head_dim)
    backends = [select_backend(name, _CPU, dtype, [geometry]) for name in _NAMES]
    block_size = backends[0].block_size
    blocks_per_seq = -(-workload.context_len // block_size)
    num_blocks = workload.batch_size * blocks_per_seq
    num_bytes = backends[0].bytes_per_block(geometry, dtype) * num_blocks
    num_layers = 1 + _COLD_BYTES // num_bytes
    step = _step(workload, num_blocks, blocks_per_seq, block_size)
    rows = step.num_tokens
    query = torch.randn(rows, shape.num_heads, shape.head_dim).to(dtype)
    key = torch.randn(rows, shape.num_kv_heads, shape.head_dim).to(dtype)
    pools = [_filled_pool(backend, geometry, num_layers, num_blocks, dtype) for backend in backends]
    options = LayerOptions(shape.head_dim**-0.5)
    best_s = dict.fromkeys(_NAMES, float("inf"))
    for _ in range(num_rounds):
        for backend, pool in zip(backends, pools, strict=True):
            for index in range(num_layers):
                started_s = time.perf_counter()
                backend.attend(pool.layer(index), query, key, key, step, options)
                took_s = time.perf_counter() - started_s
                best_s[backend.name] = min(best_s[backend.name], took_s)
    return [
        Row(
            str(dtype).removeprefix("torch."),
            workload,
            name,
            took_s * 1e6,
            num_bytes / took_s / 1e9,
        )
        for name, took_s in best_s.items()
    ]


def _step(workload: Workload, num_blocks: int, blocks_per_seq: int, block_size: int) -> StepInputs:
    block_ids = list(range(num_blocks))
    random.Random(0).shuffle(block_ids)
    cached_len = workload.context_len - workload.query_len
    sequences = [
        SequenceStep(
            [0] * workload.query_len, cached_len, block_ids[start : start + blocks_per_seq]
        )
        for start in range(0, num_blocks, blocks_per_seq)
    ]
    return StepInputs.build(
        sequences, block_size=block_size, scratch_block_id=num_blocks, device=_CPU, min_tokens=1
    )


def _filled_pool(
    backend: AttentionBackend,
    geometry: LayerGeometry,
    num_layers: int,
    num_blocks: int,
    dtype: torch.dtype,
) -> KVCache:
    pool = KVCache(backend, [geometry] * num_layers, num_blocks, dtype, _CPU)
    for index in range(num_layers):
        pool.layer(index).keys.normal_()
        pool.layer(index).values.normal_()
    return pool


def _table(rows: Sequence[Row]) -> str:
    """Markdown: a line per workload, a column per backend."""
    lines = [
        f"| dtype, batch x query, context | {' | '.join(_NAMES)} | cpu / cpu-op | cpu-op GB/s |",
        "|---" * (len(_NAMES) + 3) + "|",
    ]
    for start in range(0, len(rows), len(_NAMES)):
        group = rows[start : start + len(_NAMES)]
        times = {row.backend: row.min_us for row in group}
        work = group[0].workload
        title = f"{group[0].dtype} {work.batch_size} x {work.query_len}, {work.context_len}"
        columns = " | ".join(f"{times[name]:.0f}" for name in _NAMES)
        ratio = times["cpu"] / times["cpu-op"]
        lines.append(f"| {title} | {columns} | {ratio:.1f} | {group[-1].gigabytes_per_s:.1f} |")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Measure and print; answers the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.attention", description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--prefill", action="store_true", help="prompt chunks too")
    parser.add_argument("--json", action="store_true", help="all figures instead of a table")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    shape = Shape(args.heads, args.kv_heads, args.head_dim)
    rows = [
        row
        for dtype in _DTYPES.values()
        for workload in (*_DECODES, *(_PREFILLS if args.prefill else ()))
        for row in measure(shape, dtype, workload, args.rounds)
    ]
    settings = {"threads": args.threads, **asdict(shape)}
    if args.json:
        print(json.dumps({"settings": settings, "rows": [asdict(row) for row in rows]}, indent=1))
    else:
        print(settings, _table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
