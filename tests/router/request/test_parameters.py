"""Each rule by itself, their order, and what becomes of parameters and grammars that keep them."""

import math
from typing import Any

import pytest

from constraints.spec import ConstraintSpec, Kind
from proto.contract import LogprobParams, SamplingParams, StopParams
from router.engine.validation import RawParams, Validation
from router.request.errors import InvalidRequest
from router.request.parameters import GRAMMAR_TYPES, RawGrammar
from router.request.request import Constraint, GenerateRequest
from router.text.tokenizer import Tokenizer
from tests.router.rig import SEED, VALIDATION_LIMITS


def case(field: str, given_text: str, bound: str = "", /, **params: Any) -> Any:
    """A rule broken by `params`: what the message must say of it."""
    names = "-".join(f"{word}={str(value)[:24]}" for word, value in params.items())
    return pytest.param(params, field, bound, given_text, id=names)


NAN = math.nan
INF = math.inf
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
    case("grammar", "", "must be a JSON schema", grammar=RawGrammar(Kind.JSON_SCHEMA, [])),
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
async def test_the_first_broken_rule_is_the_one_reported(
    validation: Validation, first: int
) -> None:
    params = {word: value for _, broken in IN_ORDER[first:] for word, value in broken.items()}
    has_empty_prompt = first <= [field for field, _ in IN_ORDER].index("inputs")
    if first == 0:  # a bad temperature would ask for sampling, which best_of is refused for
        for word in ("temperature", "top_p", "typical_p", "top_k"):
            del params[word]
    with pytest.raises(InvalidRequest) as refused:
        await validation.validate("" if has_empty_prompt else "a", RawParams(**params))
    assert refused.value.field == IN_ORDER[first][0]


# --- what becomes of parameters


async def test_nothing_given_is_greedy_and_neutral(validation: Validation) -> None:
    request = await validation.validate("fox", RawParams(), trace_id="t-1")
    assert request.sampling == SamplingParams()
    assert request.stop == StopParams(
        max_new_tokens=VALIDATION_LIMITS.max_total_len - len(request.prompt_ids)
    )
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
        watermark=True,
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
            watermark=True,
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
        ({"watermark": True}, False),
        ({"repetition_penalty": 1.3, "frequency_penalty": 1.0, "seed": 3}, False),
    ],
)
async def test_a_parameter_that_needs_sampling_turns_it_on(
    validation: Validation, params: dict[str, Any], samples: bool
) -> None:
    request = await validation.validate("fox", RawParams(**params))
    assert request.sampling.do_sample is samples


async def test_a_seed_is_drawn_only_for_requests_that_sample_without_one(
    validation: Validation,
) -> None:
    async def seed(**params: Any) -> int:
        return (await validation.validate("fox", RawParams(**params))).sampling.seed

    assert await seed(do_sample=True) == SEED
    assert await seed(do_sample=True, seed=0) == 0
    assert await seed() == 0


async def test_seeds_differ_from_request_to_request(tokenizer: Tokenizer) -> None:
    validation = Validation(VALIDATION_LIMITS, tokenizer)
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


async def test_a_rule_for_whole_numbers_says_so(validation: Validation) -> None:
    with pytest.raises(InvalidRequest, match="`top_k` must be a whole number of at least 1"):
        await validation.validate("a", RawParams(top_k=0))


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        ("json", {"properties": {"a": {}}}, '{"properties":{"a":{}}}'),
        ("json", {"enum": [1, "é"]}, '{"enum":[1,"é"]}'),
        ("json_object", ' {"type": "array"} ', '{"type": "array"}'),
        ("json", '{"type": "integer", "type": "string"}', '{"type": "integer", "type": "string"}'),
        ("json", True, "true"),
        ("json", "false", "false"),
        ("json_schema", {}, "{}"),
        ("regex", "a+", "a+"),
        ("choice", ["b", "a", "b"], '["b","a"]'),
        ("choice", ["a", ""], '["a",""]'),
        ("lark", "start: WORD", "start: WORD"),
        ("where", "len(A) < 3", "len(A) < 3"),
    ],
)
def test_a_grammar_is_a_constraint(word: str, value: Any, text: str) -> None:
    kind = GRAMMAR_TYPES[word]

    assert RawGrammar(kind, value).constraint("grammar") == Constraint(ConstraintSpec(kind, text))


@pytest.mark.parametrize(
    ("kind", "value", "words"),
    [
        (Kind.JSON_SCHEMA, "{", "not JSON: unexpected end"),
        (Kind.JSON_SCHEMA, "[]", "must be a JSON schema"),
        (Kind.JSON_SCHEMA, "3", "must be a JSON schema"),
        (Kind.JSON_SCHEMA, [], "must be a JSON schema"),
        (Kind.JSON_SCHEMA, None, "must be a JSON schema"),
        (Kind.REGEX, "", "`regex` must be a string, not empty"),
        (Kind.REGEX, {}, "`regex` must be a string, not empty"),
        (Kind.LARK, 3, "`lark` must be a string, not empty"),
        (Kind.CHOICE, [], "`choice` must be a list of strings"),
        (Kind.CHOICE, "a", "`choice` must be a list of strings"),
        (Kind.CHOICE, [], "at least one"),
        (Kind.CHOICE, ["a", 1], "`choice` must be a list of strings"),
    ],
)
def test_what_is_no_grammar_is_refused_by_the_parameter_s_name(
    kind: Kind, value: Any, words: str
) -> None:
    with pytest.raises(InvalidRequest, match="`response_format` is not valid") as refusal:
        RawGrammar(kind, value).constraint("response_format")

    assert words in str(refusal.value)
    assert refusal.value.field == "response_format"
