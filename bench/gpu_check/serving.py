"""What a shard does beside forwards: idle time, waits, masks, steps that do not fit, and a peer."""

import gc
import time
from pathlib import Path

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, GenerationConfig

import models.demo
from bench.gpu_check.random_model import config_of
from bench.gpu_check.rows import Row, Sizes
from bench.gpu_check.speed import Load, Server, served
from constraints.spec import ConstraintSpec, Kind
from model_server.masking.constraint_cache import ConstraintCache
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.model.model import PagedModel
from proto.contract import FinishReason, NewSequence, OutputConstraint, SamplingParams, StopParams

SHAPE = "Llama 3 8B"
_DEMO = Path(models.demo.__path__[0])
_NUM_STEPS = 50
_PROMPT_LEN, _NUM_NEW = 64, 128
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
    with served(SHAPE, sizes, load.batch_size, _guides) as server:
        rows = [
            *_idle(server, load, sizes),
            *_waits(server, load, sizes),
            *_constrained(server, load, sizes),
            *_out_of_memory(server, sizes),
        ]
        rate = _rate(server, load.batch_size)
    return [*rows, *_peer(rate, load.batch_size, sizes)]


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
    step = server.runner.begin_decode([0], ())
    if sizes.device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            following = server.runner.begin_decode([0], ())
            step.finish()
            step = following
    finally:
        if sizes.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    step.finish()
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
    first = server.runner.begin_decode([0], ()).finish().request_ids
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
        server.runner.prefill(1, [prompt], 0, ())
        return []
    filler = _fill_memory(sizes.device)
    output = server.runner.prefill(1, [prompt], 0, ())
    del filler
    torch.cuda.empty_cache()
    reasons = {each.request_id: each.finish_reason for each in output.generations}
    survived = server.runner.decode([0], ()).request_ids == first
    is_right = reasons.get(9) is FinishReason.ERROR and survived
    return [Row("a prompt that does not fit fails alone", float(is_right), wanted=1)]


def _fill_memory(device: torch.device, left_bytes: int = 64 << 20) -> list[torch.Tensor]:
    """Take all but a little of the device's memory."""
    torch.cuda.empty_cache()
    free_bytes = torch.cuda.mem_get_info(device)[0]
    return [torch.empty(free_bytes - left_bytes, dtype=torch.uint8, device=device)]


def _rate(server: Server, num_requests: int) -> float:
    """Tokens a second of prompts that come at once and are answered to their end."""
    runner, block_size = server.runner, server.model.block_size
    num_blocks = -(-(_PROMPT_LEN + _NUM_NEW + 1) // block_size)
    runner.clear(None)
    started_s = time.perf_counter()
    new = [
        NewSequence(
            request_id=index,
            token_ids=tuple((index * 7 + i) % 1000 + 3 for i in range(_PROMPT_LEN)),
            prompt_len=_PROMPT_LEN,
            cached_len=0,
            chunk_len=_PROMPT_LEN,
            block_ids=tuple(range(index * num_blocks, (index + 1) * num_blocks)),
            sampling=SamplingParams(),
            stop=StopParams(max_new_tokens=_NUM_NEW, ignore_eos=True),
        )
        for index in range(num_requests)
    ]
    half = len(new) // 2
    runner.prefill(0, new[:half], None, ())
    runner.prefill(0, new[half:], 0, ())
    server.decode(_NUM_NEW)
    return num_requests * _NUM_NEW / (time.perf_counter() - started_s)


def _peer(rate: float, num_requests: int, sizes: Sizes) -> list[Row]:
    """The same requests by transformers' continuous batching."""
    config = config_of(SHAPE, sizes)
    with torch.device(sizes.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    prompts = [
        [(index * 7 + i) % 1000 + 3 for i in range(_PROMPT_LEN)] for index in range(num_requests)
    ]
    num_new = 4 if sizes.is_rehearsal else _NUM_NEW
    settings = GenerationConfig(max_new_tokens=num_new, do_sample=False, eos_token_id=-1)
    if sizes.device.type != "cuda":
        # It needs a GPU.
        return []
    model.set_attn_implementation("paged|sdpa")
    with torch.inference_mode():
        model.generate_batch(prompts[:2], generation_config=settings)
        started_s = time.perf_counter()
        answers = model.generate_batch(prompts, generation_config=settings)
        took_s = time.perf_counter() - started_s
        peer_rate = sum(len(each.generated_tokens) for each in answers.values()) / took_s
    del model
    gc.collect()
    torch.cuda.empty_cache()
    name = f"{SHAPE}, {num_requests} requests at once"
    return [
        Row(f"{name}: Tandem", rate, "tok/s"),
        Row(f"{name}: transformers' continuous batching", peer_rate, "tok/s"),
        Row(f"{name}: ratio", rate / peer_rate, "x", wanted=4.0),
    ]
