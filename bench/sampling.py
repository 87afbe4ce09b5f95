"""The sampler alone: milliseconds a step, by parameters, vocabulary and batch.

    python -m bench.sampling [--threads 2] [--device cpu] [--vocab-size 32000] [--dtype bfloat16]

Logits are normal, of a deviation of 2.5 (flat: hard on top-p) or 6 (peaked, as of a trained model).
They are written just before each step, as a model would. Steps of all cases are interleaved, so
that a busy neighbour meets every case; the table holds the fastest and the median step.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from model_server.engine.malloc import keep_freed_memory
from model_server.sampling.masks import Masks
from model_server.sampling.sampler import Sampler
from proto.contract import LogprobParams, SamplingParams, StopParams

DRAWN = SamplingParams(do_sample=True, temperature=0.8)
PROMPT_LEN = 200


@dataclass(frozen=True, slots=True)
class Case:
    """What all requests of a batch ask for."""

    name: str
    sampling: SamplingParams
    logprobs: LogprobParams = field(default_factory=LogprobParams)
    deviation: float = 2.5
    masked: float = 0.0  # the part of the rows that has a mask


CASES = (
    Case("greedy", SamplingParams()),
    Case("greedy, raw logprobs, top 5", SamplingParams(), LogprobParams(5, raw=True)),
    Case("temperature", DRAWN),
    Case("temperature, raw logprobs", DRAWN, LogprobParams(raw=True)),
    Case("temperature, masked", DRAWN, masked=1.0),
    Case("temperature, half of them masked", DRAWN, masked=0.5),
    Case("temperature, an eighth masked", DRAWN, masked=0.125),
    Case("top-k 50, top-p .95", replace(DRAWN, top_k=50, top_p=0.95)),
    Case("top-k 50, top-p .95, top 5", replace(DRAWN, top_k=50, top_p=0.95), LogprobParams(5)),
    Case("min-p .05", replace(DRAWN, min_p=0.05)),
    Case("top-p .95, peaked", replace(DRAWN, top_p=0.95), deviation=6.0),
    Case("top-p .95, flat", replace(DRAWN, temperature=1.0, top_p=0.95)),
    Case("typical-p .95, peaked", replace(DRAWN, typical_p=0.95), deviation=6.0),
    Case("typical-p .95, flat", replace(DRAWN, temperature=1.0, typical_p=0.95)),
    Case(
        "temperature, three penalties",
        replace(DRAWN, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1),
    ),
    # Flat logits hardly ever repeat a token: nearly every green list is made anew.
    Case("temperature, watermark", replace(DRAWN, watermark=True)),
    Case("peaked, watermark", replace(DRAWN, watermark=True), deviation=6.0),
)


class Bench:
    """One case at one batch size, ready to step."""

    def __init__(self, case: Case, batch_size: int, args: argparse.Namespace) -> None:
        device = torch.device(args.device)
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(batch_size, args.vocab_size, generator=generator) * case.deviation
        self._source: Tensor = logits.to(device, getattr(torch, args.dtype))
        self._logits = self._source.clone()
        num_words = -(-args.vocab_size // 32)
        self._masks: Masks | None = None
        num_masked = int(case.masked * batch_size)
        if num_masked:
            words = torch.full((num_masked, num_words), 0x55555555, dtype=torch.int32)
            self._masks = Masks(np.arange(num_masked), words)
        self._sampler = Sampler(args.vocab_size, device, (0,), batch_size)
        self._ids = tuple(range(batch_size))
        self._device = device
        prompt = torch.randint(args.vocab_size, (PROMPT_LEN,), generator=generator).tolist()
        for request_id in self._ids:
            sampling = replace(case.sampling, seed=request_id)
            stop = StopParams(max_new_tokens=100_000)
            self._sampler.add(request_id, sampling, stop, case.logprobs, prompt, PROMPT_LEN)

    def step_ms(self) -> float:
        """One step, results on the host."""
        self._logits.copy_(self._source)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        self._sampler.sample(self._ids, self._logits, self._masks)
        return (time.perf_counter() - start) * 1e3


def measure(args: argparse.Namespace) -> dict[str, dict[int, tuple[float, float]]]:
    """By case and batch size: fastest and median milliseconds."""
    benches = {
        (case.name, size): Bench(case, size, args)
        for case in CASES
        if args.only in case.name
        for size in args.batch_sizes
    }
    steps: dict[tuple[str, int], list[float]] = {key: [] for key in benches}
    for round_number in range(args.rounds + 3):
        for key, bench in benches.items():
            step_ms = bench.step_ms()
            if round_number >= 3:
                steps[key].append(step_ms)
    return {
        case.name: {
            size: (min(steps[case.name, size]), statistics.median(steps[case.name, size]))
            for size in args.batch_sizes
        }
        for case in CASES
        if args.only in case.name
    }


def main(argv: Sequence[str]) -> None:
    """Prints a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--vocab-size", type=int, default=32_000)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    keep_freed_memory()
    table = measure(args)
    if args.json:
        print(json.dumps({"arguments": vars(args), "step_ms": table}, indent=1))
        return
    print(
        f"{args.device}, {args.threads} threads, vocabulary {args.vocab_size}, {args.dtype}: "
        "fastest/median ms a step"
    )
    print(f"{'':32}" + "".join(f"{f'B{size}':>16}" for size in args.batch_sizes))
    for name, by_size in table.items():
        cells = (f"{f'{fast:.2f}/{median:.2f}':>16}" for fast, median in by_size.values())
        print(f"{name:32}" + "".join(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
