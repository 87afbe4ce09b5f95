"""Nothing invalid ever becomes a request."""

import math
from collections.abc import Coroutine
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.engine.validation import RawParams, Validation
from router.request.errors import InvalidRequest
from router.request.request import GenerateRequest
from tests.router.validating import LIMITS

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
    assert 1 <= len(request.prompt_ids) <= LIMITS.max_input_len
    assert all(0 <= token_id < LIMITS.vocab_size for token_id in request.prompt_ids)
    assert 1 <= stop.max_new_tokens <= LIMITS.max_total_len - len(request.prompt_ids)
    assert 0 <= stop.min_new_tokens <= stop.max_new_tokens
    assert len(stop.stop_strings) <= 4
    assert all(stop.stop_strings)
    assert all(0 <= token_id < LIMITS.vocab_size for token_id in stop.stop_token_ids)
    assert 1e-6 <= sampling.temperature <= 1e6
    assert 1e-6 <= sampling.repetition_penalty <= 1e6
    assert all(0 < p <= 1 for p in (sampling.top_p, sampling.typical_p) if p is not None)
    assert sampling.min_p is None or 0 <= sampling.min_p <= 1
    assert sampling.top_k is None or 1 <= sampling.top_k <= LIMITS.vocab_size
    assert -2 <= sampling.presence_penalty <= 2
    assert -2 <= sampling.frequency_penalty <= 2
    assert 0 <= sampling.seed < 2**64
    assert all(0 <= token_id < LIMITS.vocab_size for token_id in sampling.logit_bias)
    assert all(-100 <= value <= 100 for value in sampling.logit_bias.values())
    assert 0 <= request.logprobs.num_top_tokens <= 5
    assert request.deadline_s is None or math.isfinite(request.deadline_s)
