"""Each rule by itself, their order, and that nothing invalid ever becomes a request."""

import math
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import InvalidRequest
from router.request import GenerateRequest, LogprobParams, SamplingParams, StopParams
from router.text.tokenizer import Tokenizer
from router.validation import Limits, RawParams, Validation
from tests.router.text import small_tokenizers

LIMITS = Limits(max_input_len=24, max_total_len=32, vocab_size=500)
SEED = 17


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.load(small_tokenizers.save(small_tokenizers.byte_level(), folder))
    yield tokenizer
    tokenizer.close()


@pytest.fixture(scope="module")
def validation(tokenizer: Tokenizer) -> Validation:
    return Validation(LIMITS, tokenizer, draw_seed=lambda: SEED)


def case(field: str, given_text: str, bound: str = "", /, **params: Any) -> Any:
    """A rule broken by `params`: what the message must say of it."""
    names = "-".join(f"{word}={str(value)[:24]}" for word, value in params.items())
    return pytest.param(params, field, bound, given_text, id=names)


NAN, INF = math.nan, math.inf
RULES = [
    case("best_of", "0", "between 1 and 2", best_of=0, do_sample=True),
    case("best_of", "3", "between 1 and 2", best_of=3, do_sample=True),
    case("best_of", "2", "`do_sample`", best_of=2),
    case("temperature", "0.0", "greater than 0", temperature=0.0),
    case("temperature", "-1", "greater than 0", temperature=-1),
    case("temperature", "nan", "finite", temperature=NAN),
    case("temperature", "inf", "finite", temperature=INF),
    case("repetition_penalty", "0.0", "greater than 0", repetition_penalty=0.0),
    case("repetition_penalty", "nan", "finite", repetition_penalty=NAN),
    case("repetition_penalty", "inf", "finite", repetition_penalty=INF),
    case("frequency_penalty", "-2.1", "between -2 and 2", frequency_penalty=-2.1),
    case("frequency_penalty", "2.1", "between -2 and 2", frequency_penalty=2.1),
    case("frequency_penalty", "nan", "between -2 and 2", frequency_penalty=NAN),
    case("presence_penalty", "-2.1", "between -2 and 2", presence_penalty=-2.1),
    case("presence_penalty", "inf", "between -2 and 2", presence_penalty=INF),
    case("top_p", "0.0", "greater than 0 and less than 1", top_p=0.0),
    case("top_p", "1.0", "greater than 0 and less than 1", top_p=1.0),
    case("top_p", "nan", "greater than 0 and less than 1", top_p=NAN),
    case("typical_p", "0.0", "greater than 0 and less than 1", typical_p=0.0),
    case("typical_p", "1.0", "greater than 0 and less than 1", typical_p=1.0),
    case("min_p", "-0.1", "between 0 and 1", min_p=-0.1),
    case("min_p", "1.1", "between 0 and 1", min_p=1.1),
    case("min_p", "nan", "between 0 and 1", min_p=NAN),
    case("top_k", "0", "at least 1", top_k=0),
    case("top_k", "-5", "at least 1", top_k=-5),
    case("max_new_tokens", "0", "at least 1", max_new_tokens=0),
    case("max_new_tokens", "-1", "at least 1", max_new_tokens=-1),
    case("min_new_tokens", "-1", "at least 0", min_new_tokens=-1),
    case("min_new_tokens", "5", "which is 4", min_new_tokens=5, max_new_tokens=4),
    case("min_new_tokens", "31", "which is 30", min_new_tokens=31),
    case("stop", "5", "at most 4", stop=("a", "b", "c", "d", "e")),
    case("stop", "0 characters in string 1", "1 to 1000", stop=("a", "")),
    case("stop", "1001 characters in string 0", "1 to 1000", stop=("a" * 1001,)),
    case("stop", "U+D800", "valid Unicode", stop=("\ud800",)),
    case("stop_token_ids", "500", "between 0 and 499", stop_token_ids=(1, 500)),
    case("stop_token_ids", "-1", "between 0 and 499", stop_token_ids=(-1,)),
    case("logit_bias", "500", "between 0 and 499", logit_bias={500: 1.0}),
    case("logit_bias", "-1", "between 0 and 499", logit_bias={-1: 1.0}),
    case("logit_bias", "100.5 for token 3", "between -100 and 100", logit_bias={3: 100.5}),
    case("logit_bias", "nan for token 3", "between -100 and 100", logit_bias={3: NAN}),
    case("logit_bias", "-inf for token 3", "between -100 and 100", logit_bias={3: -INF}),
    case("seed", "7", "`best_of` > 1", seed=7, best_of=2, do_sample=True),
    case("seed", "-1", "between 0 and 18446744073709551615", seed=-1),
    case("seed", str(2**64), "between 0 and 18446744073709551615", seed=2**64),
    case("top_n_tokens", "6", "between 0 and 5", top_n_tokens=6),
    case("top_n_tokens", "-1", "between 0 and 5", top_n_tokens=-1),
    case("truncate", "0", "between 1 and 24", truncate=0),
    case("truncate", "25", "between 1 and 24", truncate=25),
    case("grammar", "", "not served yet", grammar={"type": "json", "value": {}}),
    case("deadline_s", "nan", "finite", deadline_s=NAN),
    case("max_new_tokens", "2 `inputs` tokens and 31 `", "at most 32", max_new_tokens=31),
    case("max_new_tokens", "10000", "at most 32", max_new_tokens=10_000),
]  # fmt: skip


@pytest.mark.parametrize(("params", "field", "bound", "given_text"), RULES)
async def test_a_broken_rule_is_refused_with_field_bound_and_value(
    validation: Validation, params: dict[str, Any], field: str, bound: str, given_text: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await validation.validate("a", RawParams(**params))
    message = str(refused.value)
    assert refused.value.field == field
    assert f"`{field}`" in message
    assert bound in message
    assert given_text in message


@pytest.mark.parametrize(("params", "field", "bound", "given_text"), RULES)
async def test_a_message_speaks_the_clients_words(
    validation: Validation, params: dict[str, Any], field: str, bound: str, given_text: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        await validation.validate("a", RawParams(**params, names={field: "their_word"}))
    assert refused.value.field == "their_word"
    assert "`their_word`" in str(refused.value)
    assert f"`{field}`" not in str(refused.value)


# Every rule of TGI's list, in its order; each is broken by the parameters of its line alone.
IN_ORDER: list[tuple[str, dict[str, Any]]] = [
    ("best_of", {"best_of": 2}),
    ("temperature", {"temperature": 0.0}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("frequency_penalty", {"frequency_penalty": 3.0}),
    ("top_p", {"top_p": 1.0}),
    ("typical_p", {"typical_p": 1.0}),
    ("top_k", {"top_k": 0}),
    ("max_new_tokens", {"max_new_tokens": 0}),
    ("stop", {"stop": tuple("abcde")}),
    ("seed", {"seed": -1}),
    ("top_n_tokens", {"top_n_tokens": 6}),
    ("inputs", {}),
    ("truncate", {"truncate": 0}),
]


@pytest.mark.parametrize("first", range(len(IN_ORDER)), ids=[field for field, _ in IN_ORDER])
async def test_the_first_broken_rule_is_the_one_told(validation: Validation, first: int) -> None:
    params = {word: value for _, broken in IN_ORDER[first:] for word, value in broken.items()}
    has_empty_prompt = first <= [field for field, _ in IN_ORDER].index("inputs")
    if first == 0:  # a bad temperature would ask for sampling, which best_of is refused for
        for word in ("temperature", "top_p", "typical_p", "top_k"):
            del params[word]
    with pytest.raises(InvalidRequest) as refused:
        await validation.validate("" if has_empty_prompt else "a", RawParams(**params))
    assert refused.value.field == IN_ORDER[first][0]


# --- the prompt


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


# --- what becomes of parameters


async def test_nothing_given_is_greedy_and_neutral(validation: Validation) -> None:
    request = await validation.validate("fox", RawParams(), trace_id="t-1")
    assert request.sampling == SamplingParams()
    assert request.stop == StopParams(max_new_tokens=LIMITS.max_total_len - len(request.prompt_ids))
    assert request.logprobs == LogprobParams()
    assert (request.trace_id, request.deadline_s, request.skip_special_tokens) == (
        "t-1",
        None,
        True,
    )


async def test_everything_given_arrives(validation: Validation) -> None:
    raw = RawParams(
        best_of=1,
        temperature=0.5,
        repetition_penalty=1.2,
        frequency_penalty=-2,
        presence_penalty=2,
        top_k=10,
        top_p=0.9,
        typical_p=0.8,
        min_p=0.1,
        max_new_tokens=9,
        min_new_tokens=3,
        stop=("b", "a", "b"),
        seed=2**64 - 1,
        top_n_tokens=5,
        logit_bias={3: -100, 499: 2.5},
        stop_token_ids=(4, 3, 4),
        ignore_eos=True,
        decoder_input_details=True,
        raw_logprobs=True,
        keep_stop_string=False,
        skip_special_tokens=False,
        deadline_s=12.5,
    )
    request = await validation.validate_ids((7, 8), raw, trace_id="t-2")
    assert request == GenerateRequest(
        prompt_ids=(7, 8),
        prompt_text=request.prompt_text,
        sampling=SamplingParams(
            do_sample=True,
            temperature=0.5,
            top_k=10,
            top_p=0.9,
            typical_p=0.8,
            min_p=0.1,
            repetition_penalty=1.2,
            presence_penalty=2.0,
            frequency_penalty=-2.0,
            logit_bias={3: -100.0, 499: 2.5},
            seed=2**64 - 1,
        ),
        stop=StopParams(
            max_new_tokens=9,
            min_new_tokens=3,
            ignore_eos=True,
            stop_token_ids=(4, 3),
            stop_strings=("b", "a"),
            keep_stop_string=False,
        ),
        logprobs=LogprobParams(num_top_tokens=5, raw=True, prompt=True),
        skip_special_tokens=False,
        deadline_s=12.5,
        trace_id="t-2",
    )


@pytest.mark.parametrize(
    ("params", "samples"),
    [
        ({}, False),
        ({"do_sample": False}, False),
        ({"do_sample": True}, True),
        ({"temperature": 1.0}, True),
        ({"top_k": 5}, True),
        ({"top_p": 0.5}, True),
        ({"typical_p": 0.5}, True),
        ({"min_p": 0.0}, True),
        ({"do_sample": False, "temperature": 0.7}, True),
        ({"repetition_penalty": 1.3, "frequency_penalty": 1.0, "seed": 3}, False),
    ],
)
async def test_a_parameter_that_needs_sampling_turns_it_on(
    validation: Validation, params: dict[str, Any], samples: bool
) -> None:
    request = await validation.validate("fox", RawParams(**params))
    assert request.sampling.do_sample is samples


async def test_a_seed_is_drawn_only_for_who_samples_without_one(validation: Validation) -> None:
    async def seed(**params: Any) -> int:
        return (await validation.validate("fox", RawParams(**params))).sampling.seed

    assert await seed(do_sample=True) == SEED
    assert await seed(do_sample=True, seed=0) == 0
    assert await seed() == 0


async def test_seeds_differ_from_request_to_request(tokenizer: Tokenizer) -> None:
    validation = Validation(LIMITS, tokenizer)
    raw = RawParams(do_sample=True)
    seeds = {(await validation.validate("fox", raw)).sampling.seed for _ in range(8)}
    assert len(seeds) == 8


async def test_values_that_float32_cannot_compute_with_become_the_nearest_that_it_can(
    validation: Validation,
) -> None:
    raw = RawParams(temperature=1e-300, top_p=1e-40, typical_p=1e-40, repetition_penalty=10**400)
    sampling = (await validation.validate("fox", raw)).sampling
    assert (sampling.temperature, sampling.top_p, sampling.typical_p) == (1e-6, 1e-6, 1e-6)
    assert sampling.repetition_penalty == 1e6


async def test_top_k_beyond_the_vocabulary_keeps_all_of_it(validation: Validation) -> None:
    assert (await validation.validate("fox", RawParams(top_k=10**30))).sampling.top_k == 500


async def test_a_request_does_not_change_with_what_it_was_made_from(
    validation: Validation,
) -> None:
    bias = {3: 1.0}
    request = await validation.validate("fox", RawParams(logit_bias=bias))
    bias[3] = 99.0
    assert request.sampling.logit_bias == {3: 1.0}


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
    deadline_s=st.none() | st.floats(),
)


@given(raw=raw_params, prompt_ids=st.lists(integers, max_size=30))
@settings(max_examples=400, deadline=None)
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
@settings(max_examples=200, deadline=None)
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
    sampling, stop = request.sampling, request.stop
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


async def test_a_rule_for_whole_numbers_says_so(validation: Validation) -> None:
    with pytest.raises(InvalidRequest, match="`top_k` must be a whole number of at least 1"):
        await validation.validate("a", RawParams(top_k=0))
