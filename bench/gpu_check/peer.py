"""Requests that come at once, beside transformers' own continuous batching on the same GPU."""

import time

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from bench.gpu_check.random_model import config_of
from bench.gpu_check.rows import Row, Sizes
from bench.gpu_check.speed import Server, free_memory, served
from proto.contract import NewSequence, SamplingParams, StopParams

SHAPE = "Llama 3 8B"
_PROMPT_LEN, _NUM_NEW = 64, 128


def run(sizes: Sizes) -> list[Row]:
    """See rows.Part. The peer needs a GPU."""
    num_requests = 4 if sizes.is_rehearsal else 64
    name = f"{SHAPE}, {num_requests} requests at once"
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
    free_memory(sizes)
    with served(SHAPE, sizes, num_requests) as server:
        return _rate(server, num_requests)


def _rate(server: Server, num_requests: int) -> float:
    """Tokens a second of prompts that come at once and are answered to their end."""
    runner, block_size = server.runner, server.model.block_size
    num_blocks = -(-(_PROMPT_LEN + _NUM_NEW + 1) // block_size)
    runner.clear()
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
    runner.step(new[:half])
    runner.step(new[half:])
    server.decode(_NUM_NEW)
    return num_requests * _NUM_NEW / (time.perf_counter() - started_s)


def _peer_rate(num_requests: int, sizes: Sizes) -> float:
    """The same requests by transformers' continuous batching."""
    config = config_of(SHAPE, sizes)
    free_memory(sizes)
    with torch.device(sizes.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    prompts = [
        [(index * 7 + i) % 1000 + 3 for i in range(_PROMPT_LEN)] for index in range(num_requests)
    ]
    settings = GenerationConfig(max_new_tokens=_NUM_NEW, do_sample=False, eos_token_id=-1)
    model.set_attn_implementation("paged|sdpa")
    model.generate_batch(prompts[:2], generation_config=settings)
    started_s = time.perf_counter()
    answers = model.generate_batch(prompts, generation_config=settings)
    took_s = time.perf_counter() - started_s
    return sum(len(each.generated_tokens) for each in answers.values()) / took_s
