"""A prompt and parameters become a request in range, or are refused with the numbers."""

import math
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.spec import ConstraintSpec, Kind, ThoughtRule
from proto.contract import OutputConstraint
from router.engine.validation import RawParams, Validation, marker_id_of
from router.request.errors import InvalidRequest
from router.request.images import PreparedImage
from router.request.parameters import RawGrammar
from router.request.request import GenerateRequest
from router.text.tokenizer import Tokenizer
from tests.checks import FakeChecks
from tests.router.rig import VALIDATION_LIMITS
from tests.router.text import small_tokenizers


async def test_an_empty_prompt_is_refused(validation: Validation) -> None:
    with pytest.raises(InvalidRequest, match="`inputs` must not be empty"):
        await validation.validate("", RawParams())
    with pytest.raises(InvalidRequest, match="`prompt` must not be empty"):
        await validation.validate_ids((), RawParams(names={"inputs": "prompt"}))


async def test_a_prompt_of_text_without_tokens_is_refused(tmp_path: Path) -> None:
    folder = small_tokenizers.save(small_tokenizers.undecoded(), tmp_path)
    validation = Validation(VALIDATION_LIMITS, Tokenizer.load(folder))
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
    small = Validation(replace(VALIDATION_LIMITS, vocab_size=10), tokenizer)
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
    tight = Validation(replace(VALIDATION_LIMITS, max_input_len=32), tokenizer)
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


numbers = st.one_of(
    st.floats(), st.integers(-3, 40), st.integers(), st.floats(-3, 3), st.just(10**400)
)
integers = st.one_of(st.integers(-2, 40), st.integers(480, 520), st.integers())
WHOLE = "best_of top_k max_new_tokens min_new_tokens truncate seed top_n_tokens".split()
REAL = "temperature repetition_penalty frequency_penalty presence_penalty top_p typical_p".split()
raw_params = st.builds(
    RawParams,
    **{word: st.none() | integers for word in WHOLE},
    **{word: st.none() | numbers for word in [*REAL, "min_p"]},
    do_sample=st.none() | st.booleans(),
    stop=st.none() | st.lists(st.text(st.characters(), max_size=3), max_size=5).map(tuple),
    logit_bias=st.none() | st.dictionaries(integers, numbers, max_size=3),
    stop_token_ids=st.none() | st.lists(integers, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    decoder_input_details=st.booleans(),
    deadline_s=st.none() | st.floats(allow_nan=False, allow_infinity=False),
)


@given(raw=raw_params, prompt_ids=st.lists(integers, max_size=30))
async def test_anything_at_all_is_refused_or_becomes_a_request_in_range(
    validation: Validation, raw: RawParams, prompt_ids: list[int]
) -> None:
    assert_refused_or_in_range(await outcome(validation.validate_ids(prompt_ids, raw)))


@given(
    # Mostly good values, so that most examples become requests.
    temperature=st.none() | st.floats(1e-300, 1e300),
    top_p=st.none() | st.floats(0, 1, exclude_min=True, exclude_max=True),
    repetition_penalty=st.none() | st.floats(1e-300, 1e300),
    min_p=st.none() | st.floats(0, 1),
    top_k=st.none() | st.integers(1),
    max_new_tokens=st.none() | st.integers(1, 40),
    min_new_tokens=st.none() | st.integers(0, 40),
    truncate=st.none() | st.integers(1, 24),
    text=st.text(st.characters(), max_size=30),
)
async def test_any_text_is_refused_or_becomes_a_request_in_range(
    validation: Validation, text: str, **params: Any
) -> None:
    assert_refused_or_in_range(await outcome(validation.validate(text, RawParams(**params))))


THOUGHT = ThoughtRule("<think>", "</think>", is_begun=True)


@pytest.mark.parametrize(
    ("budget", "expected"),
    [(None, None), (0, ConstraintSpec(Kind.TEXT, "")), (9, ConstraintSpec(Kind.TEXT, ""))],
)
async def test_a_thought_with_a_budget_is_a_constraint_of_its_own(
    tokenizer: Tokenizer, budget: int | None, expected: ConstraintSpec | None
) -> None:
    validation = Validation(VALIDATION_LIMITS, tokenizer, FakeChecks())
    thought = replace(THOUGHT, max_len=budget)
    request = await validation.validate("The fox", RawParams(max_new_tokens=10, thought=thought))
    assert request.thought == thought
    assert (request.constraint.spec if request.constraint else None) == expected


async def test_a_budget_that_the_answers_length_keeps_is_none(tokenizer: Tokenizer) -> None:
    validation = Validation(VALIDATION_LIMITS, tokenizer, FakeChecks())
    params = RawParams(max_new_tokens=10, thought=replace(THOUGHT, max_len=10))
    request = await validation.validate("The fox", params)
    assert request.thought == THOUGHT
    assert request.constraint is None


async def test_a_budget_below_zero_is_refused_in_the_clients_words(tokenizer: Tokenizer) -> None:
    validation = Validation(VALIDATION_LIMITS, tokenizer, FakeChecks())
    thought = replace(THOUGHT, max_len=-1)
    raw = RawParams(thought=thought, names={"thought_budget": "thinking_token_budget"})
    with pytest.raises(InvalidRequest, match=r"`thinking_token_budget` .* at least 0. Given: -1"):
        await validation.validate("The fox", raw)


async def test_shards_get_the_thought_with_the_constraint(tokenizer: Tokenizer) -> None:
    validation = Validation(VALIDATION_LIMITS, tokenizer, FakeChecks())
    raw = RawParams(grammar=RawGrammar(Kind.REGEX, "a+"), thought=THOUGHT)
    request = await validation.validate("The fox", raw)
    assert request.shard_constraint == OutputConstraint(
        ConstraintSpec(Kind.REGEX, "a+"), thought=THOUGHT
    )


async def outcome(
    validated: Coroutine[None, None, GenerateRequest],
) -> GenerateRequest | InvalidRequest:
    try:
        return await validated
    except InvalidRequest as error:
        return error


def assert_refused_or_in_range(outcome: GenerateRequest | InvalidRequest) -> None:
    if isinstance(outcome, InvalidRequest):
        assert outcome.field is not None
        assert f"`{outcome.field}`" in str(outcome)
    else:
        assert_in_range(outcome)


def assert_in_range(request: GenerateRequest) -> None:
    sampling = request.sampling
    stop = request.stop
    assert 1 <= len(request.prompt_ids) <= VALIDATION_LIMITS.max_input_len
    assert all(0 <= token_id < VALIDATION_LIMITS.vocab_size for token_id in request.prompt_ids)
    assert 1 <= stop.max_new_tokens <= VALIDATION_LIMITS.max_total_len - len(request.prompt_ids)
    assert 0 <= stop.min_new_tokens <= stop.max_new_tokens
    assert len(stop.stop_strings) <= 4
    assert all(stop.stop_strings)
    assert all(0 <= token_id < VALIDATION_LIMITS.vocab_size for token_id in stop.stop_token_ids)
    assert 1e-6 <= sampling.temperature <= 1e6
    assert 1e-6 <= sampling.repetition_penalty <= 1e6
    assert all(0 < p <= 1 for p in (sampling.top_p, sampling.typical_p) if p is not None)
    assert sampling.min_p is None or 0 <= sampling.min_p <= 1
    assert sampling.top_k is None or 1 <= sampling.top_k <= VALIDATION_LIMITS.vocab_size
    assert -2 <= sampling.presence_penalty <= 2
    assert -2 <= sampling.frequency_penalty <= 2
    assert 0 <= sampling.seed < 2**64
    assert all(0 <= token_id < VALIDATION_LIMITS.vocab_size for token_id in sampling.logit_bias)
    assert all(-100 <= value <= 100 for value in sampling.logit_bias.values())
    assert 0 <= request.logprobs.num_top_tokens <= 5
    assert request.deadline_s is None or math.isfinite(request.deadline_s)


async def salt(validation: Validation, adapter_id: int | None, cache_salt: str | None) -> bytes:
    raw = RawParams(max_new_tokens=1, adapter_id=adapter_id, cache_salt=cache_salt)
    request = await validation.validate_ids((1, 2), raw)
    assert request.adapter_id == adapter_id
    return request.cache_salt


async def test_what_an_adapter_computed_is_found_by_its_own_load_and_salt_alone(
    validation: Validation,
) -> None:
    salts = [
        await salt(validation, adapter_id, cache_salt)
        for adapter_id in (None, 1, 2, 256)
        for cache_salt in (None, "a", "1", "LoRA adapter")
    ]
    assert len(set(salts)) == len(salts)
    assert salts[0] == b""
    assert await salt(validation, 2, "a") == await salt(validation, 2, "a")


async def test_no_salt_of_a_client_leads_to_what_an_adapter_computed(
    validation: Validation,
) -> None:
    """Not even one that spells what the adapter's salt is made of."""
    wanted = await salt(validation, 1, None)
    number = (1).to_bytes(16)
    for spelt in (number, b"LoRA adapter" + number, number + b"LoRA adapter"):
        assert await salt(validation, None, spelt.decode("latin-1")) != wanted


def with_images(*lens: int, **more: Any) -> RawParams:
    """Images of so many placeholders each, between two breaks."""
    spans = [(7, *(9,) * num, 7) for num in lens]
    return RawParams(images=tuple(PreparedImage(bytes(16), span, {}) for span in spans), **more)


class TestImages:
    @pytest.fixture
    def seeing(self, tokenizer: Tokenizer) -> Validation:
        return Validation(VALIDATION_LIMITS, tokenizer, image_marker=" fox")

    async def test_each_marker_becomes_the_span_of_its_image(
        self, seeing: Validation, tokenizer: Tokenizer
    ) -> None:
        text = "The fox and a fox"
        marker_id = marker_id_of(" fox", tokenizer)
        ids = tokenizer.encode(text)
        assert marker_id is not None
        assert ids.count(marker_id) == 2
        request = await seeing.validate(text, with_images(2, 3))
        first, second = (index for index, each in enumerate(ids) if each == marker_id)
        assert request.prompt_ids == (
            *ids[:first], 7, 9, 9, 7, *ids[first + 1 : second], 7, 9, 9, 9, 7, *ids[second + 1 :],
        )  # fmt: skip
        assert [(each.start, each.span_len) for each in request.images] == [
            (first, 4),
            (second + 3, 5),
        ]
        assert request.prompt_text == text

    @pytest.mark.parametrize("text", ["no marker", "The fox and a fox"])
    async def test_markers_and_images_must_be_as_many(self, seeing: Validation, text: str) -> None:
        num_markers = text.count(" fox")
        rule = f"a marker,  fox, for each of its 1 images and no other. Given: {num_markers}"
        with pytest.raises(InvalidRequest, match=rule):
            await seeing.validate(text, with_images(2))

    async def test_the_tokens_of_an_image_count(self, seeing: Validation) -> None:
        most = VALIDATION_LIMITS.max_input_len
        with pytest.raises(InvalidRequest, match=f"must have at most {most} tokens"):
            await seeing.validate("The fox", with_images(most))

    async def test_truncation_leaves_out_text_and_no_part_of_an_image(
        self, seeing: Validation
    ) -> None:
        whole = await seeing.validate("The fox runs", with_images(2))
        (image,) = whole.images
        fits = len(whole.prompt_ids) - image.start
        cut = await seeing.validate("The fox runs", with_images(2, truncate=fits))
        assert cut.prompt_ids == whole.prompt_ids[image.start :]
        assert [each.start for each in cut.images] == [0]
        with pytest.raises(InvalidRequest, match=f"`truncate` must be at least {fits}"):
            await seeing.validate("The fox runs", with_images(2, truncate=fits - 1))

    async def test_a_marker_without_an_image_is_refused_in_texts_and_ids(
        self, seeing: Validation, tokenizer: Tokenizer
    ) -> None:
        raw = RawParams(names={"inputs": "prompt"})
        rule = "`prompt` must have a marker,  fox, for each of its 0 images and no other. Given: 1"
        with pytest.raises(InvalidRequest, match=rule) as refused:
            await seeing.validate("The fox", raw)
        assert refused.value.field == "prompt"
        with pytest.raises(InvalidRequest, match=rule):
            await seeing.validate_ids(tokenizer.encode("The fox"), raw)
