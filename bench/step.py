"""One decode step of one shard alone: no router, no wire, no text.

    python -m bench.step /tmp/llama-100m --threads 2

Sequences of `--context` tokens decode greedily in one batch. Each step's time is split into the
model's forward, sampling, and the shard's bookkeeping. Prints JSON; `min` is the figure to compare
on a shared machine, `median` the one to expect.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

from model_server.engine.distributed import World
from model_server.engine.memory import keep_freed_memory
from model_server.engine.runner import Runner
from model_server.engine.step import StepOutput
from model_server.model.checkpoint_check import ModelSettings
from model_server.model.loading import load_model
from model_server.model.model import PagedModel
from model_server.sampling.sampler import Sampler
from proto.contract import NewSequence, SamplingParams, StopParams

_MAX_PREFILL_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Milliseconds of a decode step of `batch_size` sequences."""

    batch_size: int
    context_len: int
    min_ms: float
    median_ms: float
    tokens_per_s: float  # of the median
    forward_ms: float  # median
    sample_ms: float  # median
    other_ms: float  # median of what is left


def load(folder: Path, *, device: torch.device, dtype: str, attention: str) -> PagedModel:
    """The model of a checkpoint, on one rank."""
    settings = ModelSettings(folder, device, dtype=dtype, attention=attention)
    model = load_model(settings, World())
    # As the served shard does.
    keep_freed_memory()
    return model


def measure(model: PagedModel, batch_size: int, context_len: int, num_steps: int) -> StepTimes:
    """Decode `num_steps` steps around that context, after a few that do not count."""
    num_warm = 5
    start_len = context_len - num_steps // 2
    num_blocks = -(-(start_len + num_warm + num_steps + 1) // model.block_size)
    sampler = Sampler(model.vocab_size, model.device, model.eos_token_ids, batch_size)
    runner = Runner(model, sampler, World())
    runner.warmup(_MAX_PREFILL_TOKENS, batch_size, None, num_blocks * batch_size)
    rng = random.Random(0)
    for index in range(batch_size):
        sequence = NewSequence(
            request_id=index,
            token_ids=tuple(rng.randrange(3, model.vocab_size) for _ in range(start_len)),
            prompt_len=start_len,
            cached_len=0,
            chunk_len=start_len,
            block_ids=tuple(range(index * num_blocks, (index + 1) * num_blocks)),
            sampling=SamplingParams(),
            stop=StopParams(max_new_tokens=num_warm + num_steps + 1, ignore_eos=True),
        )
        runner.prefill(index, [sequence], None, ())
    runner.decode(range(batch_size), ())
    for _ in range(num_warm - 1):
        runner.decode([0], ())
    return _times(batch_size, context_len, [runner.decode([0], ()) for _ in range(num_steps)])


def _times(batch_size: int, context_len: int, outputs: Sequence[StepOutput]) -> StepTimes:
    def median_ms(durations_ns: list[int]) -> float:
        return round(statistics.median(durations_ns) / 1e6, 3)

    total_ms = median_ms([output.total_ns for output in outputs])
    return StepTimes(
        batch_size=batch_size,
        context_len=context_len,
        min_ms=round(min(output.total_ns for output in outputs) / 1e6, 3),
        median_ms=total_ms,
        tokens_per_s=round(batch_size / total_ms * 1e3, 1),
        forward_ms=median_ms([output.forward_ns for output in outputs]),
        sample_ms=median_ms([output.sample_ns for output in outputs]),
        other_ms=median_ms([o.total_ns - o.forward_ns - o.sample_ns for o in outputs]),
    )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m bench.step", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--context", type=int, default=192)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, help="of the CPU (default: torch's)")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    model = load(args.folder, device=device, dtype=args.dtype, attention=args.attention)
    report = {
        "model": str(args.folder),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "attention": model.attention_backend,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "steps": [
            asdict(measure(model, batch_size, args.context, args.steps))
            for batch_size in args.batch_sizes
        ],
    }
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
