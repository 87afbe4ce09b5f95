"""Text behind other text: no special tokens and no space that nobody wrote."""

from pathlib import Path

import pytest

from router.request.errors import InvalidRequest
from router.text.plain_text import plain_ids
from tests.router.text.small_tokenizers import KINDS, load

LOSSLESS = ("byte_level", "byte_fallback", "byte_fallback_unstripped", "metaspace")
TEXTS = ("the", " the", "  the quick", "quick brown", "3 + 4", "", " ", "over 3", "naïve")


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", TEXTS)
async def test_the_tokens_say_the_text_and_nothing_else(
    kind: str, text: str, tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    ids = await plain_ids(tokenizer, text)

    said = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
    assert said == text
    assert not any(tokenizer.is_special(token_id) for token_id in ids)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_tokenizer_says_something(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    assert await plain_ids(tokenizer, "quick")


async def test_half_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        await plain_ids(load(tmp_path), "\ud800")
