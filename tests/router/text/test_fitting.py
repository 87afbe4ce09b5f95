"""Texts that are far too long are told by their beginnings; no text that fits is refused."""

from pathlib import Path

import pytest

from router.request.errors import InvalidRequest
from router.text.fitting import check_fits
from router.text.tokenizer import Tokenizer
from tests.router.text.small_tokenizers import KINDS, load

WORDS = "the quick brown fox jumps over the lazy dog. "


async def is_refused(tokenizer: Tokenizer, text: str, max_len: int) -> bool:
    try:
        await check_fits(tokenizer, text, max_len, "text")
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_fits_is_never_refused(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    text = WORDS * 1000
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))

    assert not await is_refused(tokenizer, text, num_tokens)
    assert await is_refused(tokenizer, text, 1)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
async def test_a_text_that_is_far_too_long_is_refused(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())

    with pytest.raises(InvalidRequest, match=r"at most 100 tokens.*in its first 16384 of 4500000"):
        await check_fits(tokenizer, WORDS * 100_000, 100, "text")


async def test_a_text_that_may_be_a_little_too_long_passes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS["byte_level"]())
    num_tokens = len(tokenizer.encode(WORDS * 800, add_special_tokens=False))

    assert not await is_refused(tokenizer, WORDS * 800, num_tokens - 1)
