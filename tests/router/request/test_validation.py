"""A prompt becomes token ids that fit, or is refused with the numbers."""

from dataclasses import replace
from pathlib import Path

import pytest

from router.engine.validation import RawParams, Validation
from router.request.errors import InvalidRequest
from router.text.tokenizer import Tokenizer
from tests.router.text import small_tokenizers
from tests.router.validating import LIMITS


async def test_an_empty_prompt_is_refused(validation: Validation) -> None:
    with pytest.raises(InvalidRequest, match="`inputs` must not be empty"):
        await validation.validate("", RawParams())
    with pytest.raises(InvalidRequest, match="`prompt` must not be empty"):
        await validation.validate_ids((), RawParams(names={"inputs": "prompt"}))


async def test_a_prompt_of_text_without_tokens_is_refused(tmp_path: Path) -> None:
    folder = small_tokenizers.save(small_tokenizers.undecoded(), tmp_path)
    validation = Validation(LIMITS, Tokenizer.load(folder))
    with pytest.raises(InvalidRequest, match="must not be empty: its text has no tokens"):
        await validation.validate("  ", RawParams(), add_special_tokens=False)


async def test_a_lone_surrogate_in_a_prompt_is_refused_in_the_clients_words(
    validation: Validation,
) -> None:
    with pytest.raises(
        InvalidRequest, match=r"`messages` must be valid Unicode.*U\+DC80"
    ) as refused:
        await validation.validate("hi \udc80", RawParams(names={"inputs": "messages"}))
    assert refused.value.field == "messages"


@pytest.mark.parametrize(("token_id", "shown"), [(500, "500"), (-1, "-1"), (2**70, str(2**70))])
async def test_an_id_beyond_the_vocabulary_is_refused(
    validation: Validation, token_id: int, shown: str
) -> None:
    with pytest.raises(InvalidRequest, match=f"`inputs` .* between 0 and 499.*: {shown}"):
        await validation.validate_ids((1, token_id, 2), RawParams())


async def test_a_token_that_only_the_tokenizer_has_is_refused(tokenizer: Tokenizer) -> None:
    small = Validation(replace(LIMITS, vocab_size=10), tokenizer)
    with pytest.raises(InvalidRequest, match="between 0 and 9, the model's vocabulary"):
        await small.validate("The fox", RawParams())


async def test_a_text_that_is_far_too_long_is_refused_by_its_beginning(
    validation: Validation,
) -> None:
    text = "over the lazy dog " * 2000
    with pytest.raises(InvalidRequest) as refused:
        await validation.validate(text, RawParams(names={"inputs": "prompt"}))

    assert refused.value.field == "prompt"
    assert "`prompt` must have at most 24 tokens. Given: " in str(refused.value)
    assert "in its first 16384 of 36000 characters" in str(refused.value)
    cut = await validation.validate(text, RawParams(truncate=4))
    assert len(cut.prompt_ids) == 4


async def test_a_prompt_that_is_too_long_is_refused_with_the_numbers(
    validation: Validation,
) -> None:
    with pytest.raises(InvalidRequest, match=r"`inputs` must have at most 24 tokens\. Given: 25"):
        await validation.validate_ids((5,) * 25, RawParams())
    with pytest.raises(InvalidRequest, match=r"`inputs` must have at most 24 tokens\. Given: 25"):
        await validation.validate_ids((5,) * 25, RawParams(max_new_tokens=1))


async def test_a_prompt_fits_with_its_output_or_not_at_all(validation: Validation) -> None:
    fits = await validation.validate_ids((5,) * 24, RawParams(max_new_tokens=8))
    assert (len(fits.prompt_ids), fits.stop.max_new_tokens) == (24, 8)
    with pytest.raises(
        InvalidRequest,
        match=r"`inputs` tokens \+ `max_new_tokens` must be at most 32. "
        "Given: 24 `inputs` tokens and 9 `max_new_tokens`",
    ) as refused:
        await validation.validate_ids((5,) * 24, RawParams(max_new_tokens=9))
    assert refused.value.field == "max_new_tokens"


async def test_a_server_without_room_for_output_says_so(tokenizer: Tokenizer) -> None:
    tight = Validation(replace(LIMITS, max_input_len=32), tokenizer)
    with pytest.raises(InvalidRequest, match=r"`inputs` must have at most 31 tokens\. Given: 32"):
        await tight.validate_ids((5,) * 32, RawParams())


async def test_without_max_new_tokens_all_that_remains_is_allowed(validation: Validation) -> None:
    request = await validation.validate_ids((5,) * 20, RawParams())
    assert request.stop.max_new_tokens == 12


async def test_truncation_keeps_the_end_and_the_whole_text(
    validation: Validation, tokenizer: Tokenizer
) -> None:
    text = "The quick brown fox " * 40
    request = await validation.validate(text, RawParams(truncate=3))
    assert request.prompt_ids == tuple(tokenizer.encode(text)[-3:])
    assert request.prompt_text == text


async def test_special_tokens_of_a_prompt_are_the_callers_choice(
    validation: Validation, tokenizer: Tokenizer
) -> None:
    chat = await validation.validate("<s>fox", RawParams(), add_special_tokens=False)
    assert chat.prompt_ids == tuple(tokenizer.encode("fox"))
    assert (await validation.validate("fox", RawParams())).prompt_ids == chat.prompt_ids


async def test_a_prompt_of_ids_is_shown_as_its_text(
    validation: Validation, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode("The fox")
    assert (await validation.validate_ids(token_ids, RawParams())).prompt_text == "The fox"
    visible = await validation.validate_ids(token_ids, RawParams(skip_special_tokens=False))
    assert visible.prompt_text == "<s>The fox"
