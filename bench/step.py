"""One decode step of one shard alone: no router, no wire, no text.

    python -m bench.step /tmp/llama-100m --threads 2
    python -m bench.step FOLDER --batch-sizes 1 2 4 8 16 32 64 128 256 --svg by_batch.svg
    python -m bench.step FOLDER --batch-sizes 1 8 --contexts 256 1024 4096 16384 --svg by_len.svg

Sequences of `--contexts` tokens decode greedily in one batch. Each step's time is split into the
model's forward, sampling, and the shard's bookkeeping. Prints JSON; `min` is the figure to compare
on a shared machine, `median` the one to expect. `floor` is what reading weights and KV once takes,
and reading and writing states, at the bandwidth that all threads reach together: no step is faster.
"""

import ctypes
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import transformers

from bench.chart import Line, lines
from bench.command_line import parser_of
from model_server.checkpoint.check import ModelSettings
from model_server.engine.distributed import World
from model_server.engine.memory import keep_freed_memory
from model_server.engine.runner import Runner
from model_server.executor.executor import PagedModel
from model_server.loading import load_model, new_sampler
from model_server.step import StepOutput
from native.library import load_native
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
    floor_ms: float | None = None


def load(
    folder: Path,
    *,
    device: torch.device,
    dtype: str,
    attention: str,
    quantize: str | None,
) -> PagedModel:
    """The model of a checkpoint, on one rank."""
    settings = ModelSettings(folder, device, dtype=dtype, attention=attention, quantize=quantize)
    model = load_model(settings, World())
    # As the served shard does.
    keep_freed_memory()
    return model


def measure(model: PagedModel, batch_size: int, context_len: int, num_steps: int) -> StepTimes:
    """Decode `num_steps` steps around that context, after a few that do not count."""
    num_warm = 5
    start_len = context_len - num_steps // 2
    # What is before it counts as cached: zeros are read as fast as what prompts leave.
    num_blocks = -(-(start_len + num_warm + num_steps + 1) // model.block_size)
    sampler = new_sampler(model, batch_size)
    runner = Runner(model, sampler, World())
    runner.warmup(_MAX_PREFILL_TOKENS, batch_size, None, num_blocks * batch_size, 2 * batch_size)
    rng = random.Random(0)
    new = [
        NewSequence(
            request_id=index,
            token_ids=tuple(rng.randrange(3, model.vocab_size) for _ in range(start_len)),
            prompt_len=start_len,
            # A state stands behind tokens that are computed.
            cached_len=0 if model.state_bytes else start_len - 1,
            chunk_len=start_len if model.state_bytes else 1,
            block_ids=tuple(range(index * num_blocks, (index + 1) * num_blocks)),
            sampling=SamplingParams(),
            stop=StopParams(max_new_tokens=num_warm + num_steps + 1, ignore_eos=True),
            state_ids=(2 * index, 2 * index + 1) if model.state_bytes else (),
        )
        for index in range(batch_size)
    ]
    runner.step(new)
    for _ in range(num_warm):
        runner.step()
    return _times(batch_size, context_len, [runner.step() for _ in range(num_steps)])


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


def read_gb_per_s() -> float:
    """The best of some readings of half a GiB by all threads. Raises NativeUnavailable."""
    read = load_native(Path(__file__).with_name("read_memory.cpp")).read_memory
    read.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    words = torch.ones(2**26, dtype=torch.int64)
    took_s = []
    for _ in range(10):
        started_s = time.perf_counter()
        read(words.data_ptr(), len(words))
        took_s.append(time.perf_counter() - started_s)
    return words.nbytes / min(took_s) / 1e9


def _with_floor(times: StepTimes, model: PagedModel, folder: Path, gb_per_s: float) -> StepTimes:
    """An embedding that is no head as well is not read; of the keys and values every one is, and a
    state is read and written.
    """
    config = json.loads((folder / "config.json").read_text())
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    if not config["tie_word_embeddings"]:
        weights -= 2 * config["vocab_size"] * config["hidden_size"]
    of_each = times.context_len * model.bytes_per_block / model.block_size
    num_bytes = weights + times.batch_size * (of_each + 2 * model.state_bytes)
    return replace(times, floor_ms=round(num_bytes / gb_per_s / 1e6, 3))


def _chart(found: Sequence[StepTimes]) -> str:
    """By context, a line for each batch size; or by batch size, if there is one context."""
    series = []
    by_batch = len({times.context_len for times in found}) == 1
    for batch_size in [None] if by_batch else sorted({times.batch_size for times in found}):
        chosen = [times for times in found if batch_size in (None, times.batch_size)]
        xs = [times.batch_size if by_batch else times.context_len for times in chosen]
        name = "a step" if by_batch else f"batch of {batch_size}"
        series.append(Line(name, [(x, t.median_ms) for x, t in zip(xs, chosen, strict=True)]))
        floors = [(x, t.floor_ms or 0.0) for x, t in zip(xs, chosen, strict=True)]
        series.append(Line("bandwidth", floors, dashed=True))
    x_label = "sequences" if by_batch else "tokens of context of each sequence"
    return lines("One decode step", x_label, "ms, median", series)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--attention", default="auto")
    parser.add_argument(
        "--quantize", choices=("int8", "int4"), help="weights, while they are loaded"
    )
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[192])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, help="of the CPU (default: torch's)")
    parser.add_argument("--svg", type=Path, help="draw it there, with the floor (of a CPU)")
    args = parser.parse_args()
    if args.quantize and args.svg:
        parser.error("--svg draws the floor of the checkpoint's own weights: not with --quantize")
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    model = load(
        args.folder,
        device=device,
        dtype=args.dtype,
        attention=args.attention,
        quantize=args.quantize,
    )
    found = [
        measure(model, batch_size, context_len, args.steps)
        for context_len in args.contexts
        for batch_size in args.batch_sizes
    ]
    if args.svg:
        gb_per_s = read_gb_per_s()
        found = [_with_floor(times, model, args.folder, gb_per_s) for times in found]
        args.svg.write_text(_chart(found))
    report = {
        "model": str(args.folder),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "dtype": str(model.dtype),
        "executor": model.executor,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "steps": [asdict(times) for times in found],
    }
    json.dump(report, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
