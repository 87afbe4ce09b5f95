"""A token's logits have the same bits whatever else is in its step, and however it got there."""

import subprocess
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from model_server.executor.dense_cpu import DenseCpu
from tests.model_server.executor.decoders import Decoder, Held, Pool, decoder, random_tokens
from tests.native.compiler import needs_compiler

pytestmark = needs_compiler

# Around the rows of a tile, the rows that are interleaved, and the tokens that are helped with.
BATCH_SIZES = (1, 2, 4, 5, 7, 12, 13, 25, 64, 65)
PROMPT_LEN = 150
NUM_NEW = 6
KINDS = ("float32", "bfloat16", "int8")


def executor(own: Decoder, kind: str, num_threads: int = 2) -> DenseCpu:
    if kind == "int8":
        return own.executor(torch.bfloat16, num_threads, quantize="int8")
    return own.executor(getattr(torch, kind), num_threads)


def tokens() -> Tensor:
    return random_tokens(PROMPT_LEN + NUM_NEW)


def in_pieces(pool: Pool, held: Held, pieces: tuple[int, ...], num_mates: int) -> Tensor:
    """The sequence's logits, a step for each piece, every step with pieces of batch mates."""
    logits = []
    mates = [pool.other(60) for _ in range(num_mates)]
    for piece in pieces:
        parts = [(held, piece)]
        for mate in mates:
            count = min(pool.rng.choice((1, 1, 7, 20)), 60 - mate.computed_len)
            if count:
                parts.insert(pool.rng.randrange(len(parts) + 1), (mate, count))
        answers = pool.run(parts)
        logits.append(answers[[sequence is held for sequence, _ in parts].index(True)])
    return torch.cat(logits)


@cache
def alone(family: str, kind: str) -> Tensor:
    """[PROMPT_LEN + NUM_NEW, vocab_size]: the whole prompt in one step, then token by token."""
    pool = Pool(executor(decoder(family), kind, num_threads=1))
    logits = in_pieces(pool, pool.sequence(tokens()), (PROMPT_LEN, *[1] * NUM_NEW), 0)
    pool.executor.close()
    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_batch_of_any_size(kind: str) -> None:
    pool = Pool(executor(decoder("llama"), kind))
    mates = [pool.other(40, computed_len=30 + i % 9) for i in range(max(BATCH_SIZES) - 1)]
    for batch_size in BATCH_SIZES:
        held = pool.sequence(tokens()[:40])
        pool.run([(held, 39)])
        for mate in mates:
            mate.computed_len -= 1
        first, *_ = pool.run([(held, 1), *((mate, 1) for mate in mates[: batch_size - 1])])
        for mate in mates[batch_size - 1 :]:
            mate.computed_len += 1
        assert torch.equal(first[0], alone("llama", kind)[39]), batch_size
        pool.free += held.block_ids
    pool.executor.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen2_moe"])
@pytest.mark.parametrize("num_threads", [1, 4])
def test_in_chunks_with_others_on_any_number_of_threads(
    family: str, kind: str, num_threads: int
) -> None:
    pool = Pool(executor(decoder(family), kind, num_threads))
    pieces = (1, 16, 37, 3, 70, 23, *[1] * NUM_NEW)
    actual = in_pieces(pool, pool.sequence(tokens()), pieces, num_mates=5)
    assert torch.equal(actual, alone(family, kind))
    pool.executor.close()


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen2_moe"])
def test_whichever_threads_are_late(family: str) -> None:
    """More threads than cores: some are stopped inside of items, which others then do again."""
    pool = Pool(executor(decoder(family), "float32", num_threads=8))
    for _ in range(150):
        held = pool.sequence(tokens())
        mates = [pool.other(60) for _ in range(5)]
        answers = pool.run([(held, 1), *((mate, pool.rng.choice((1, 7, 20))) for mate in mates)])
        assert torch.equal(answers[0], alone(family, "float32")[:1])
        for sequence in (held, *mates):
            pool.free += sequence.block_ids
    pool.executor.close()


def test_a_token_may_be_routed_by_two_threads_at_once(tmp_path: Path) -> None:
    source = Path(__file__).with_name("routed_twice.cpp")
    headers = Path(__file__).parents[3] / "model_server" / "native"
    argv = ["g++", "-std=c++17", "-O2", "-march=native", f"-I{headers}", str(source), "-pthread"]
    subprocess.run([*argv, "-o", str(tmp_path / "routed")], check=True)
    said = subprocess.run([tmp_path / "routed"], capture_output=True, text=True, check=True)

    assert said.stdout == "0\n"


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_prefix_that_another_sequence_computed(kind: str) -> None:
    pool = Pool(executor(decoder("llama"), kind))
    first = pool.sequence(tokens())
    pool.run([(first, 70)])
    hit = pool.sequence(tokens())
    hit.block_ids[:4] = first.block_ids[:4]
    hit.computed_len = 64
    actual = in_pieces(pool, hit, (PROMPT_LEN - 64, *[1] * NUM_NEW), num_mates=3)
    assert torch.equal(actual, alone("llama", kind)[64:])
    pool.executor.close()


def test_a_context_so_long_that_threads_share_it() -> None:
    own = decoder("llama", max_position_embeddings=4096, num_hidden_layers=2)
    prompt = random_tokens(3000)
    answers = []
    for num_threads in (1, 4):
        pool = Pool(own.executor(torch.bfloat16, num_threads))
        held = pool.sequence(prompt)
        pool.run([(held, 2990)])
        answers.append([pool.run([(held, 1)])[0] for _ in range(5)])
        pool.executor.close()
    assert all(torch.equal(one, four) for one, four in zip(*answers, strict=True))
