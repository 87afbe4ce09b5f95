"""Decode and prefill of random models beside what the machine reaches."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from bench.gpu_check.machine import copy_bytes_per_s, matmul_flops, median_s
from bench.gpu_check.random_model import config_of, random_model
from bench.gpu_check.rows import Row, Sizes
from model_server.engine.distributed import World
from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.executor.executor import PagedModel
from model_server.loading import new_sampler
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.step import SequenceStep, StepInputs, StepOutput
from proto.contract import NewSequence, OutputConstraint, SamplingParams, StopParams

_NUM_STEPS = 40
_NUM_WARM = 6


@dataclass(frozen=True, slots=True)
class Load:
    """A batch that decodes, and what its step has to reach."""

    batch_size: int
    context_len: int
    wanted_share: float | None = None
    wanted_tokens_per_s: float | None = None


DECODES = {
    "Llama 3 8B": (
        Load(1, 1024, wanted_share=0.75),
        Load(8, 1024),
        Load(64, 1024, wanted_share=0.70),
        Load(256, 1024),
        Load(1, 8192),
        Load(8, 8192),
    ),
    "Qwen3 8B": (Load(1, 1024), Load(64, 1024)),
    "Qwen3 0.6B": (Load(1, 1024, wanted_tokens_per_s=800), Load(64, 1024)),
}
_TINY_DECODES = (Load(1, 64), Load(3, 64))
_PROMPT_LENS = (512, 2048, 8192)


def run(sizes: Sizes) -> list[Row]:
    """See rows.Part."""
    return [row for shape, loads in DECODES.items() for row in _rows(shape, loads, sizes)]


def _rows(shape: str, loads: Sequence[Load], sizes: Sizes) -> list[Row]:
    if sizes.is_rehearsal:
        loads = _TINY_DECODES
    free_memory(sizes)
    rows = []
    with served(shape, sizes, max(load.batch_size for load in loads)) as server:
        for load in loads:
            rows += _decode_rows(shape, server, load, sizes)
        if shape == "Llama 3 8B":
            rows += _prefill_rows(shape, server, sizes)
    return rows


def free_memory(sizes: Sizes) -> None:
    """Give back what the models before left on the device."""
    gc.collect()
    if sizes.device.type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """A random model, its runner and the bytes of its weights."""

    config: Any
    model: PagedModel
    runner: Runner
    num_parameters: int  # that a decode step reads

    def enter(self, load: Load, num_steps: int, constraint: OutputConstraint | None = None) -> None:
        """Enter a batch that decodes for so many steps; contexts are zeros, read as any others."""
        runner, block_size = self.runner, self.model.block_size
        start_len = load.context_len - num_steps // 2
        num_blocks = -(-(start_len + num_steps + 2) // block_size)
        runner.clear()
        new = [
            NewSequence(
                request_id=index,
                token_ids=tuple((index * 7 + i) % 1000 + 3 for i in range(start_len)),
                prompt_len=start_len,
                cached_len=start_len - 1,
                chunk_len=1,
                block_ids=tuple(range(index * num_blocks, (index + 1) * num_blocks)),
                sampling=SamplingParams(),
                stop=StopParams(max_new_tokens=num_steps + 1, ignore_eos=True),
                constraint=constraint,
            )
            for index in range(load.batch_size)
        ]
        runner.step(new)

    def decode(self, num_steps: int) -> list[float]:
        """The seconds of each of so many steps; each is sent before the last one is answered."""
        runner = self.runner
        times_s = []
        step = self.launched()
        last_s = time.perf_counter()
        for _ in range(num_steps - 1):
            following = self.launched()
            self._require_no_error(runner.finish(step))
            times_s.append(time.perf_counter() - last_s)
            last_s = time.perf_counter()
            step = following
        self._require_no_error(runner.finish(step))
        return times_s

    def launched(self) -> StepInFlight:
        """The next decode step, which nobody has waited for."""
        step = self.runner.begin()
        self.runner.launch(step)
        return step

    @staticmethod
    def _require_no_error(output: StepOutput) -> None:
        for generation in output.generations:
            if generation.error is not None:
                raise RuntimeError(f"request {generation.request_id}: {generation.error}")

    def median_step_s(self, load: Load, constraint: OutputConstraint | None = None) -> float:
        """Of a batch's decode steps, after a few that do not count."""
        self.enter(load, _NUM_WARM + _NUM_STEPS, constraint)
        self.decode(_NUM_WARM)
        return statistics.median(self.decode(_NUM_STEPS))

    def floor_s(self, load: Load, bytes_per_s: float) -> float:
        """What reading weights and keys and values once takes."""
        kv_bytes = self.model.bytes_per_block / self.model.block_size * load.context_len
        return (2 * self.num_parameters + load.batch_size * kv_bytes) / bytes_per_s


@contextmanager
def served(
    shape: str,
    sizes: Sizes,
    max_batch_size: int,
    guides: Callable[[PagedModel], MaskScheduler] | None = None,
) -> Iterator[Server]:
    """A random model, warmed up."""
    config = config_of(shape, sizes)
    model = random_model(config, sizes.device)
    runner = Runner(
        model,
        new_sampler(model, max_batch_size),
        World(),
        guides=None if guides is None else guides(model),
        runs_ahead=True,
    )
    max_len = 512 if sizes.is_rehearsal else 8192 + 128
    num_blocks = max(max_batch_size * 1152, 8 * max_len) // model.block_size
    runner.warmup(128 if sizes.is_rehearsal else 8192, max_batch_size, max_len, num_blocks)
    yield Server(config, model, runner, _num_read(config))
    runner.clear()


def _num_read(config: Any) -> int:
    """Parameters of the layers and the head."""
    hidden, head_dim = config.hidden_size, config.head_dim
    num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
    attention = hidden * head_dim * (2 * num_heads + 2 * num_kv_heads)
    layer = attention + 3 * hidden * config.intermediate_size
    return int(config.num_hidden_layers * layer + config.vocab_size * hidden)


def _decode_rows(shape: str, server: Server, load: Load, sizes: Sizes) -> list[Row]:
    step_s = server.median_step_s(load)
    forward_s = _forward_s(server, load, sizes)
    floor_s = server.floor_s(load, copy_bytes_per_s(sizes))
    name = f"{shape}, batch {load.batch_size} at {load.context_len}"
    share = None if sizes.is_rehearsal else load.wanted_share
    rate = None if sizes.is_rehearsal else load.wanted_tokens_per_s
    return [
        Row(f"{name}: step", step_s * 1e3, "ms"),
        Row(f"{name}: forward alone", forward_s * 1e3, "ms"),
        Row(f"{name}: tokens", load.batch_size / step_s, "tok/s", rate),
        Row(f"{name}: share of the roofline", floor_s / step_s, wanted=share),
    ]


def _forward_s(server: Server, load: Load, sizes: Sizes) -> float:
    model = server.model
    num_blocks = -(-load.context_len // model.block_size)
    steps = [
        SequenceStep((5,), load.context_len - 1, range(i * num_blocks, (i + 1) * num_blocks))
        for i in range(load.batch_size)
    ]
    inputs = StepInputs.build(
        steps,
        block_size=model.block_size,
        scratch_block_id=model.scratch_block_id,
        device=sizes.device,
    )
    return median_s(sizes, lambda: model.forward(inputs))


def _prefill_rows(shape: str, server: Server, sizes: Sizes) -> list[Row]:
    rows = []
    model, config = server.model, server.config
    for prompt_len in (32, 64) if sizes.is_rehearsal else _PROMPT_LENS:
        step = SequenceStep((5,) * prompt_len, 0, range(-(-prompt_len // model.block_size)))
        inputs = StepInputs.build(
            [step],
            block_size=model.block_size,
            scratch_block_id=model.scratch_block_id,
            device=sizes.device,
        )
        took_s = median_s(sizes, lambda: model.forward(inputs), num_runs=5)  # noqa: B023
        heads_len = config.num_attention_heads * config.head_dim
        attention = 2 * config.num_hidden_layers * heads_len * prompt_len**2
        linear = 2 * (server.num_parameters - config.vocab_size * config.hidden_size) * prompt_len
        flops = (linear + attention) / took_s
        name = f"{shape}, prompt of {prompt_len}"
        rows.append(Row(f"{name}: rate", prompt_len / took_s, "tok/s"))
        rows.append(Row(f"{name}: share of the products' peak", flops / matmul_flops(sizes)))
    return rows
