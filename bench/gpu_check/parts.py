"""The parts of the check: machine, tests, speed, serving, adapters, transformers' own batching."""

import importlib.metadata
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, GenerationConfig

import models.demo
from bench.gpu_check.rows import Row, Sizes
from bench.gpu_check.server import (
    Load,
    Server,
    config_of,
    free_memory,
    new_sequence,
    num_attention_layers,
    num_read,
    prompt_ids,
    served,
)
from constraints.spec import ConstraintSpec, Kind
from model_server.executor.executor import PagedModel
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.step import SequenceStep, StateStep, StepInputs
from proto.contract import FinishReason, NewSequence, OutputConstraint, SamplingParams, StopParams
from tests.model_server import lora_folders

_ROOT = Path(__file__).parents[2]
_DRIVER = Path("/proc/driver/nvidia/version")
_RUNS = {
    "kernels, steps and graphs": "-m 'not slow' tests/kernels",
    "engine and sampler": "-m gpu tests/model_server",
}
_DECODES = {
    "Llama 3 8B": (
        Load(1, 1024, wanted_share=0.75),
        Load(8, 1024),
        Load(64, 1024, wanted_share=0.70),
        Load(256, 1024),
        Load(1, 8192),
        Load(8, 8192),
    ),
    "Qwen3 8B": (Load(1, 1024), Load(64, 1024)),
    "Qwen3 30B-A3B, 24 layers": (Load(1, 1024), Load(8, 1024), Load(64, 1024), Load(256, 1024)),
    "Qwen3.5 9B": (Load(1, 1024), Load(8, 1024), Load(64, 1024)),
    "Qwen3 0.6B": (Load(1, 1024, wanted_tokens_per_s=800), Load(64, 1024)),
}
_TINY_DECODES = (Load(1, 64), Load(3, 64))
_PROMPT_LENS = (512, 2048, 8192)
_SHAPE = "Llama 3 8B"
_WITH_PROMPTS = (_SHAPE, "Qwen3.5 9B")
_DEMO = Path(models.demo.__path__[0])
_NUM_IDLE_STEPS = 50
_WITH_ADAPTERS = (Load(1, 1024), Load(8, 1024), Load(32, 1024))
_MAX_WITH_ADAPTER = {1: 1.12, 8: 1.15, 32: 1.2}
_LORA_RANK = 16
_WORDS = OutputConstraint(ConstraintSpec(Kind.REGEX, "([a-z]+ )+"))
_PROMPT_LEN = 64
_NUM_NEW = 128


def machine(sizes: Sizes) -> list[Row]:
    """The GPU, the versions, and what the machine reaches: copies and matrix products."""
    rows = [
        Row("torch", torch.__version__),
        Row("triton", _installed("triton")),
        Row("transformers", transformers.__version__),
    ]
    if sizes.device.type == "cuda":
        device = torch.cuda.get_device_properties(sizes.device)
        rows += [
            Row("GPU", f"{device.name}, sm_{device.major}{device.minor}"),
            Row("memory", device.total_memory / 2**30, "GiB"),
            Row("driver", _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "unknown"),
        ]
    return [
        *rows,
        Row("copies, read and written", copy_bytes_per_s(sizes) / 1e12, "TB/s"),
        Row("products in bfloat16", matmul_flops(sizes) / 1e12, "TFLOP/s"),
    ]


@cache
def copy_bytes_per_s(sizes: Sizes) -> float:
    """Of a copy within the device's memory, counting what is read and what is written."""
    num_bytes = 1 << (20 if sizes.is_rehearsal else 32)
    source = torch.ones(num_bytes, dtype=torch.uint8, device=sizes.device)
    target = torch.empty_like(source)
    return 2 * num_bytes / median_s(sizes, lambda: target.copy_(source))


@cache
def matmul_flops(sizes: Sizes) -> float:
    """Floating-point operations a second of a large product."""
    width = 64 if sizes.is_rehearsal else 8192
    left = torch.randn(width, width, dtype=torch.bfloat16, device=sizes.device)
    return 2 * width**3 / median_s(sizes, lambda: left @ left)


def median_s(sizes: Sizes, run: Callable[[], object], num_runs: int = 15) -> float:
    """The median time of some runs on the device, after a few that do not count."""
    for _ in range(3):
        run()
    if sizes.device.type != "cuda":
        return 1e-3
    times_s = []
    for _ in range(num_runs):
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        started.record()
        run()
        ended.record()
        ended.synchronize()
        times_s.append(started.elapsed_time(ended) / 1e3)
    return sorted(times_s)[num_runs // 2]


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def tests(sizes: Sizes) -> list[Row]:
    """Kernels against their references, whole steps against transformers, replayed steps against
    launched ones. A rehearsal only collects them.
    """
    rows = []
    for name, arguments in _RUNS.items():
        # Each process compiles kernels, which takes longer than to run them.
        flags = f"-q -p no:benchmark -n 8 {arguments}"
        if sizes.is_rehearsal:
            flags = "--collect-only -q -m gpu tests/model_server/engine"
        command = [sys.executable, "-m", "pytest", *shlex.split(flags)]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        sys.stdout.write(done.stdout[-3000:] if done.returncode else "")
        found = re.findall(r"(\d+) (passed|failed|error)", done.stdout)
        counts = {word: int(count) for count, word in found}
        failed = counts.get("failed", 0) + counts.get("error", 0) + (done.returncode not in (0, 1))
        rows.append(Row(f"{name}: passed", counts.get("passed", 0)))
        rows.append(Row(f"{name}: failed", failed, wanted=0, is_most=True))
    return rows


def speed(sizes: Sizes) -> list[Row]:
    """Decode and prefill of random models beside what the machine reaches."""
    return [row for shape, loads in _DECODES.items() for row in _rows(shape, loads, sizes)]


def _rows(shape: str, loads: Sequence[Load], sizes: Sizes) -> list[Row]:
    if sizes.is_rehearsal:
        loads = _TINY_DECODES
    free_memory(sizes)
    rows = []
    with served(shape, sizes, max(load.batch_size for load in loads)) as server:
        for load in loads:
            rows += _decode_rows(shape, server, load, sizes)
        if shape in _WITH_PROMPTS:
            rows += _prefill_rows(shape, server, sizes)
    return rows


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
    num_blocks = -(-load.context_len // server.model.block_size)
    steps = [
        SequenceStep(
            (5,),
            load.context_len - 1,
            range(i * num_blocks, (i + 1) * num_blocks),
            state=_state(server, 2 * i, 2 * i + 1),
        )
        for i in range(load.batch_size)
    ]
    return _steps_s(server, steps, sizes)


def _state(server: Server, read_id: int | None, write_id: int) -> StateStep | None:
    return StateStep(read_id, write_id) if server.model.state_bytes else None


def _steps_s(
    server: Server, steps: Sequence[SequenceStep], sizes: Sizes, num_runs: int = 15
) -> float:
    model = server.model
    inputs = StepInputs.build(
        steps,
        block_size=model.block_size,
        scratch_block_id=model.scratch_block_id,
        device=sizes.device,
    )
    return median_s(sizes, lambda: model.forward(inputs), num_runs)


def _prefill_rows(shape: str, server: Server, sizes: Sizes) -> list[Row]:
    rows = []
    config = server.config
    block_size = server.model.block_size
    for prompt_len in (32, 64) if sizes.is_rehearsal else _PROMPT_LENS:
        blocks = range(-(-prompt_len // block_size))
        step = SequenceStep((5,) * prompt_len, 0, blocks, state=_state(server, None, 0))
        took_s = _steps_s(server, [step], sizes, num_runs=5)
        heads_len = config.num_attention_heads * config.head_dim
        attention = 2 * num_attention_layers(config) * heads_len * prompt_len**2
        head = config.vocab_size * config.hidden_size
        linear = 2 * (num_read(config, prompt_len) - head) * prompt_len
        flops = (linear + attention) / took_s
        name = f"{shape}, prompt of {prompt_len}"
        rows.append(Row(f"{name}: rate", prompt_len / took_s, "tok/s"))
        rows.append(Row(f"{name}: share of the products' peak", flops / matmul_flops(sizes)))
    return rows


def serving(sizes: Sizes) -> list[Row]:
    """What a shard does beside forwards: idle time, waits, masks, and steps that do not fit."""
    load = Load(4, 64) if sizes.is_rehearsal else Load(64, 1024)
    free_memory(sizes)
    with served(_SHAPE, sizes, load.batch_size, _guides) as server:
        return [
            *_idle(server, load, sizes),
            *_waits(server, load, sizes),
            *_constrained(server, load, sizes),
            *_out_of_memory(server, sizes),
        ]


def _idle(server: Server, load: Load, sizes: Sizes) -> list[Row]:
    """The share of the time in which the GPU computes nothing, between decode steps."""
    if sizes.device.type != "cuda":
        server.enter(load, 4)
        server.decode(4)
        return []
    server.enter(load, _NUM_IDLE_STEPS + 20)
    server.decode(20)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        server.decode(_NUM_IDLE_STEPS)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    )
    busy_us = 0.0
    end = spans[0][0]
    for first, last in spans:
        busy_us += max(0.0, last - max(first, end))
        end = max(end, last)
    share = 1 - busy_us / (end - spans[0][0])
    name = f"{_SHAPE}, batch {load.batch_size}: idle between decode steps, of a shard alone"
    return [Row(name, 100 * share, "%", wanted=3.0, is_most=True)]


def _waits(server: Server, load: Load, sizes: Sizes) -> list[Row]:
    """Decode steps are launched while every hidden wait for the device is an error."""
    server.enter(load, 12)
    server.decode(4)
    step = server.launched()
    if sizes.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            following = server.launched()
            server.runner.finish(step)
            step = following
    finally:
        if sizes.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    server.runner.finish(step)
    return [Row("decode steps that waited for the device unasked", 0, wanted=0, is_most=True)]


def _constrained(server: Server, load: Load, sizes: Sizes) -> list[Row]:
    """Every row with a mask, against none."""
    free_s = server.median_step_s(load)
    constrained_s = server.median_step_s(load, _WORDS)
    wanted = None if sizes.is_rehearsal else 0.97
    name = f"{_SHAPE}, batch {load.batch_size}: constrained against free"
    return [Row(name, free_s / constrained_s, "x", wanted)]


def adapters(sizes: Sizes) -> list[Row]:
    """What LoRA adapters cost: steps that could have one, decode steps and a prompt with one.

    An adapter of all products, the same for every row.
    """
    loads = _TINY_DECODES if sizes.is_rehearsal else _WITH_ADAPTERS
    prompt_len = 64 if sizes.is_rehearsal else 2048
    max_batch_size = max(load.batch_size for load in loads)
    free_memory(sizes)
    with served(_SHAPE, sizes, max_batch_size) as server:
        bare_s = {load: server.median_step_s(load) for load in loads}
    free_memory(sizes)
    rows = []
    with (
        TemporaryDirectory() as folder,
        served(_SHAPE, sizes, max_batch_size, max_loras=2) as server,
    ):
        path = lora_folders.save(Path(folder, "lora"), server.adaptable, rank=_LORA_RANK)
        server.runner.load_adapter(1, server.runner.read_adapter(1, path))
        for load in loads:
            name = f"{_SHAPE}, batch {load.batch_size} at {load.context_len}"
            without_s = server.median_step_s(load)
            with_s = server.median_step_s(load, adapter_id=1)
            most = None if sizes.is_rehearsal else _MAX_WITH_ADAPTER[load.batch_size]
            idle = None if sizes.is_rehearsal else 1.02
            rows += [
                Row(f"{name}: step where there are adapters", without_s * 1e3, "ms"),
                Row(
                    f"{name}: to one where there are none",
                    without_s / bare_s[load],
                    "x",
                    idle,
                    True,
                ),
                Row(f"{name}: step with an adapter of rank {_LORA_RANK}", with_s * 1e3, "ms"),
                Row(f"{name}: to one without", with_s / without_s, "x", most, True),
            ]
        blocks = range(-(-prompt_len // server.model.block_size))
        prompts_s = [
            _steps_s(server, [SequenceStep((5,) * prompt_len, 0, blocks, adapter=place)], sizes, 5)
            for place in (None, 0)
        ]
        name = f"{_SHAPE}, prompt of {prompt_len}: with an adapter to without"
        rows.append(Row(name, prompts_s[1] / prompts_s[0], "x"))
    return rows


def _out_of_memory(server: Server, sizes: Sizes) -> list[Row]:
    """A prompt that does not fit fails; who decodes beside it goes on."""
    server.enter(Load(2, 64), 12)
    num_tokens = 32 if sizes.is_rehearsal else 8192
    block_size = server.model.block_size
    first = server.runner.step().request_ids
    num_blocks = -(-num_tokens // block_size)
    prompt = NewSequence(
        request_id=9,
        token_ids=(5,) * num_tokens,
        prompt_len=num_tokens,
        cached_len=0,
        chunk_len=num_tokens,
        block_ids=tuple(range(100, 100 + num_blocks)) if not sizes.is_rehearsal else (20, 21),
        sampling=SamplingParams(),
        stop=StopParams(max_new_tokens=2),
    )
    if sizes.device.type != "cuda":
        server.runner.step([prompt])
        return []
    filler = _fill_memory(sizes.device)
    output = server.runner.step([prompt])
    del filler
    torch.cuda.empty_cache()
    reasons = {each.request_id: each.finish_reason for each in output.generations}
    survived = server.runner.step().request_ids == first
    is_right = reasons.get(9) is FinishReason.ERROR and survived
    return [Row("a prompt that does not fit fails alone", float(is_right), wanted=1)]


def _fill_memory(device: torch.device, left_bytes: int = 64 << 20) -> list[torch.Tensor]:
    """Take all but a little of the device's memory."""
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(device)[0]
    return [torch.empty(free_bytes - left_bytes, dtype=torch.uint8, device=device)]


def _guides(model: PagedModel) -> MaskScheduler:
    """Masks of the demo model's tokens; a vocabulary that is wider bans the others."""
    cache = ConstraintCache(_DEMO, model.vocab_size, (0,))
    return MaskScheduler(
        cache, model.vocab_size, (0,), num_threads=8, is_pinned=model.device.type == "cuda"
    )


def peer(sizes: Sizes) -> list[Row]:
    """Requests that come at once, beside transformers' own continuous batching, on a GPU alone."""
    num_requests = 4 if sizes.is_rehearsal else 64
    name = f"{_SHAPE}, {num_requests} requests at once"
    rate = _own_rate(num_requests, sizes)
    rows = [Row(f"{name}: Tandem", rate, "tok/s")]
    if sizes.device.type == "cuda":
        peer_rate = _peer_rate(num_requests, sizes)
        rows += [
            Row(f"{name}: transformers' continuous batching", peer_rate, "tok/s"),
            Row(f"{name}: ratio", rate / peer_rate, "x", wanted=4.0),
        ]
    return rows


def _own_rate(num_requests: int, sizes: Sizes) -> float:
    """Tokens a second of prompts that come at once and are answered to their end."""
    free_memory(sizes)
    with served(_SHAPE, sizes, num_requests) as server:
        block_size = server.model.block_size
        server.runner.clear()
        started_s = time.perf_counter()
        new = [
            new_sequence(index, _PROMPT_LEN, _PROMPT_LEN, _NUM_NEW, block_size)
            for index in range(num_requests)
        ]
        half = num_requests // 2
        server.runner.step(new[:half])
        server.runner.step(new[half:])
        server.decode(_NUM_NEW)
        return num_requests * _NUM_NEW / (time.perf_counter() - started_s)


def _peer_rate(num_requests: int, sizes: Sizes) -> float:
    """The same requests by transformers' continuous batching."""
    config = config_of(_SHAPE, sizes)
    free_memory(sizes)
    with torch.device(sizes.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    prompts = [list(prompt_ids(index, _PROMPT_LEN)) for index in range(num_requests)]
    settings = GenerationConfig(max_new_tokens=_NUM_NEW, do_sample=False, eos_token_id=-1)
    model.set_attn_implementation("paged|sdpa")
    model.generate_batch(prompts[:2], generation_config=settings)
    started_s = time.perf_counter()
    answers = model.generate_batch(prompts, generation_config=settings)
    took_s = time.perf_counter() - started_s
    return sum(len(each.generated_tokens) for each in answers.values()) / took_s
