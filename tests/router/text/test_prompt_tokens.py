"""Texts far too long are refused by their beginnings; a text continues another one exactly."""

from pathlib import Path

import pytest

from router.request.errors import InvalidRequest
from router.text.prompt_tokens import check_fits, continuation_ids
from router.text.tokenizer import Tokenizer
from tests.router.text.small_tokenizers import KINDS, load

LOSSLESS = ("byte_level", "byte_fallback", "byte_fallback_unstripped", "metaspace")
TEXTS = ("the", " the", "  the quick", "quick brown", "3 + 4", "", " ", "over 3", "naïve")
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


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", TEXTS)
async def test_the_tokens_are_the_text_and_nothing_else(
    kind: str, text: str, tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    ids = await continuation_ids(tokenizer, text)

    decoded = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
    assert decoded == text
    assert not any(tokenizer.is_special(token_id) for token_id in ids)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_tokenizer_has_tokens_for_a_word(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    assert await continuation_ids(tokenizer, "quick")


async def test_half_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        await continuation_ids(load(tmp_path), "\ud800")
