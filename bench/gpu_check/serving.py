"""What a shard does beside forwards: idle time, waits, masks, and steps that do not fit."""

from pathlib import Path

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

import models.demo
from bench.gpu_check.rows import Row, Sizes
from bench.gpu_check.speed import Load, Server, free_memory, served
from constraints.spec import ConstraintSpec, Kind
from model_server.executor.executor import PagedModel
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from proto.contract import FinishReason, NewSequence, OutputConstraint, SamplingParams, StopParams

SHAPE = "Llama 3 8B"
_DEMO = Path(models.demo.__path__[0])
_NUM_STEPS = 50
_WORDS = OutputConstraint(ConstraintSpec(Kind.REGEX, "([a-z]+ )+"))


def _guides(model: PagedModel) -> MaskScheduler:
    """Masks of the demo model's tokens; a vocabulary that is wider bans the others."""
    cache = ConstraintCache(_DEMO, model.vocab_size, (0,))
    return MaskScheduler(
        cache, model.vocab_size, (0,), num_threads=8, is_pinned=model.device.type == "cuda"
    )


def run(sizes: Sizes) -> list[Row]:
    """See rows.Part."""
    load = Load(4, 64) if sizes.is_rehearsal else Load(64, 1024)
    free_memory(sizes)
    with served(SHAPE, sizes, load.batch_size, _guides) as server:
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
    server.enter(load, _NUM_STEPS + 20)
    server.decode(20)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        server.decode(_NUM_STEPS)
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == DeviceType.CUDA
    )
    busy_us, end = 0.0, spans[0][0]
    for first, last in spans:
        busy_us += max(0.0, last - max(first, end))
        end = max(end, last)
    share = 1 - busy_us / (end - spans[0][0])
    name = f"{SHAPE}, batch {load.batch_size}: idle between decode steps, of a shard alone"
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
    name = f"{SHAPE}, batch {load.batch_size}: constrained against free"
    return [Row(name, free_s / constrained_s, "x", wanted)]


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
