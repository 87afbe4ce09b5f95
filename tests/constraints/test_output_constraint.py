"""Whatever is sampled under an output's masks and checks ends satisfied, within the budget.

An output state accepts every text that fits, token by token, however it got to where it stands; and
an output ends at a stop string only where the constraint holds.
"""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.errors import Contradiction, DoesNotFit, IllegalToken, TooComplex
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule, Whitespace
from constraints.vocabulary import Vocabulary
from router.http.tools import AllowedTool, AllowedTools, tool_grammar
from router.text.output_text import StopMatcher
from tests.constraints.cases import (
    CASES,
    Json,
    TokenList,
    byte_vocabulary,
    demo_vocabulary,
    drawn,
    judge_of,
    language_of,
    legal_ids,
    needed_len,
    open_record,
    record,
    text_of,
    vocabulary_of,
)
from tests.constraints.grammars.rig import table
from tests.router.http.calls import HERMES

FLAT = CASES["flat"]
# One of each kind that differs in how its outputs come about.
FEW = (
    *("flat", "optional", "min-length", "date-time", "multiple", "any-of", "recursive"),
    *("[a-z]{3}-[0-9]{4}", r"[^a\n]*q[^b\n]*z", "query", "choice", "len(words(X)) == 3"),
)

# Those that leave a choice everywhere.
UNFORCED = (r"[^a\n]*q[^b\n]*z", "len(words(X)) == 3")


def state_of(
    spec: ConstraintSpec, budget: Budget, vocabulary: Vocabulary | None = None, **more: object
) -> OutputConstraintState:
    vocabulary = vocabulary or demo_vocabulary()
    language = language_of(spec, vocabulary)
    return OutputConstraintState(language, vocabulary, budget, **more)  # type: ignore[arg-type]


def spelled(text: str) -> list[int]:
    return demo_vocabulary().backend.tokenize_str(text)


@pytest.mark.parametrize("name", CASES)
def test_every_output_satisfies_its_constraint_in_its_budget(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    for slack in (0, 1, 5):
        max_len = needed_len(spec, vocabulary) + slack
        output_state = state_of(spec, Budget(max_len), vocabulary, takes_forced=slack != 5)
        output = drawn(output_state, vocabulary, max_len, random.Random(f"{name} {slack}"))
        assert output_state.is_satisfied
        assert len(output) <= max_len
        text = text_of(output, vocabulary)
        assert judge_of(spec)(text, len(output)), text


@pytest.mark.parametrize("name", FEW)
def test_a_budget_below_the_shortest_text_found_is_refused_with_both_numbers(name: str) -> None:
    spec = CASES[name]
    with pytest.raises(DoesNotFit) as refused:
        state_of(spec, Budget(0))
    needed = refused.value.needed_len
    assert state_of(spec, Budget(needed)).needed_len == needed
    with pytest.raises(DoesNotFit) as refused:
        state_of(spec, Budget(needed - 1))
    assert (refused.value.needed_len, refused.value.max_len) == (needed, needed - 1)


def test_a_state_that_cuts_lets_the_budget_run_out() -> None:
    output_state = state_of(FLAT, Budget(3, may_truncate=True))
    for token_id in spelled('{"name":')[:3]:
        assert output_state.check(token_id)
        output_state.advance(token_id)
    assert not output_state.is_satisfied


@pytest.mark.parametrize(
    ("kind", "text"),
    [(Kind.REGEX, "[xy]a{70}b"), (Kind.WHERE, f'X in ["x{"a" * 70}b", "y{"a" * 70}b"]')],
)
@pytest.mark.parametrize("max_len", [1, 4])
def test_a_state_that_cuts_takes_no_forced_token_beyond_the_budget(
    kind: Kind, text: str, max_len: int
) -> None:
    budget = Budget(max_len, may_truncate=True)
    output_state = state_of(ConstraintSpec(kind, text), budget, byte_vocabulary())
    output_state.advance(ord("x"))
    assert len(output_state.take_forced()) == max_len - 1
    assert output_state.take_forced() == ()
    assert not output_state.is_satisfied


def test_only_the_end_follows_a_text_that_is_over() -> None:
    output_state = state_of(ConstraintSpec(Kind.REGEX, "ab"), Budget(9))
    assert output_state.take_forced()
    assert output_state.is_over
    assert legal_ids(output_state, demo_vocabulary()) == [0]


def test_the_end_is_masked_before_min_len_while_anything_else_is_legal() -> None:
    output_state = state_of(
        ConstraintSpec(Kind.REGEX, "a{1,3}"), Budget(9, min_len=9), byte_vocabulary()
    )
    output_state.advance(ord("a"))
    assert legal_ids(output_state, byte_vocabulary()) == [ord("a")]
    output_state.advance(ord("a"))
    output_state.advance(ord("a"))
    assert legal_ids(output_state, byte_vocabulary()) == [256]


def test_a_stop_token_ends_a_complete_text_and_is_no_text_itself() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "[ax]{1,3}|xxxxc")
    output_state = state_of(spec, Budget(9), vocabulary, stops=StopRule(token_ids=(ord("x"),)))
    assert legal_ids(output_state, vocabulary) == [ord("a")]
    output_state.advance(ord("a"))
    assert legal_ids(output_state, vocabulary) == [ord("a"), ord("x"), 256]
    output_state.advance(ord("x"))
    assert output_state.is_satisfied
    assert output_state.is_over


def test_an_illegal_token_changes_nothing() -> None:
    vocabulary = byte_vocabulary()
    output_state = state_of(ConstraintSpec(Kind.REGEX, "[ab]{3}"), Budget(3), vocabulary)
    for token_id in (ord("c"), 256):
        with pytest.raises(IllegalToken):
            output_state.advance(token_id)
    assert drawn(output_state, vocabulary, 3, random.Random(1))


def test_a_token_after_which_nothing_fits_is_refused() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "ad|be{20}|cf{3}")
    output_state = state_of(spec, Budget(4), vocabulary)
    assert [output_state.check(ord(letter)) for letter in "abc"] == [True, False, True]
    with pytest.raises(IllegalToken):
        output_state.advance(ord("b"))


def test_a_budget_that_the_witness_fills_leaves_the_tokens_that_are_known_to_fit() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "[ab]c[0-9]*d")
    output_state = state_of(spec, Budget(3), vocabulary)
    assert set(legal_ids(output_state, vocabulary)) <= {
        ord("a"),
        ord("b"),
        vocabulary.tokens.index(b"bc"),
    }
    output_state.advance(ord("a"))
    output_state.advance(ord("c"))
    assert legal_ids(output_state, vocabulary) == [ord("d")]


@pytest.mark.parametrize("name", FEW)
def test_a_replayed_state_stands_where_the_first_one_stood(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    budget, rng = Budget(needed_len(spec, vocabulary) + 3), random.Random(name)
    written = drawn(state_of(spec, budget), vocabulary, budget.max_len, rng)
    for length in (len(written) // 2, len(written)):
        first, again = (state_of(spec, budget, takes_forced=False) for _ in range(2))
        for token_id in written[:length]:
            for other in rng.sample(legal_ids(first, vocabulary), 1):
                first.check(other)  # what was tried leaves no trace
            first.advance(token_id)
        again.replay(tuple(written[:length]))
        assert again.needed_len == first.needed_len
        assert legal_ids(again, vocabulary) == legal_ids(first, vocabulary)
        assert (again.is_satisfied, again.is_over) == (first.is_satisfied, first.is_over)


def drawn_with_runs(
    name: str, budget: Budget
) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """An output in which runs were forced, and where each of them begins."""
    vocabulary, rng = demo_vocabulary(), random.Random(name)
    for _ in range(50):
        output_state = state_of(CASES[name], budget)
        written: list[int] = []
        runs: list[tuple[int, tuple[int, ...]]] = []
        while not output_state.is_over and (legal := legal_ids(output_state, vocabulary)):
            token_id = rng.choice([each for each in legal if output_state.check(each)])
            if token_id in vocabulary.end_ids:
                break
            output_state.advance(token_id)
            run = output_state.take_forced()
            runs += [(len(written) + 1, run)]
            written += [token_id, *run]
        if any(run for _, run in runs):
            return written, runs
    raise AssertionError("nothing was forced in 50 outputs")


@pytest.mark.parametrize("name", sorted({*FEW} - {*UNFORCED}))
def test_an_output_that_breaks_off_within_a_forced_run_goes_on_with_that_run(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    budget = Budget(needed_len(spec, vocabulary) + 3)
    written, runs = drawn_with_runs(name, budget)
    for start, run in runs:
        for num_made in range(len(run)):
            again = state_of(spec, budget)
            again.replay(tuple(written[: start + num_made]))
            due = run[num_made:]
            assert legal_ids(again, vocabulary) == [due[0]]
            assert (again.is_over, again.is_satisfied) == (False, False)
            assert not again.check(due[0] + 1)
            again.advance(due[0])
            assert again.take_forced() == due[1:] or len(due) == 1
            assert again.needed_len == _after(spec, budget, written[: start + len(run)])


def _after(spec: ConstraintSpec, budget: Budget, written: list[int]) -> int:
    output_state = state_of(spec, budget, takes_forced=False)
    output_state.replay(tuple(written))
    return output_state.needed_len


def test_forks_go_their_own_ways() -> None:
    vocabulary, spec = demo_vocabulary(), CASES["optional"]
    output_state = state_of(spec, Budget(60))
    rng = random.Random(3)
    for token_id in spelled('{"')[:2]:
        output_state.advance(token_id)
    twins = [output_state.fork() for _ in range(5)]
    prefix = spelled('{"')[:2]
    outputs = [prefix + drawn(twin, vocabulary, 58, rng) for twin in twins]
    assert len({tuple(output) for output in outputs}) > 1
    assert all(judge_of(spec)(text_of(output, vocabulary), 0) for output in outputs)
    assert not output_state.is_satisfied


@pytest.mark.parametrize("name", FEW)
def test_forced_runs_are_the_beginning_of_what_the_model_would_spell(name: str) -> None:
    vocabulary, spec = demo_vocabulary(), CASES[name]
    output_state = state_of(spec, Budget(needed_len(spec, vocabulary) + 60))
    run = list(output_state.take_forced())
    for seed in range(2):
        written = run + drawn(output_state.fork(), vocabulary, 60, random.Random(seed))
        # It may break off within a character.
        text = b"".join(vocabulary.tokens[each] for each in written).decode(errors="ignore")
        assert spelled(text)[: len(run)] == run


def test_nothing_is_forced_where_every_token_is_to_be_sampled() -> None:
    output_state = state_of(ConstraintSpec(Kind.REGEX, "the fox"), Budget(50), takes_forced=False)
    assert output_state.take_forced() == ()


def test_a_forced_run_is_bounded_and_keeps_to_the_budget() -> None:
    vocabulary, spec = byte_vocabulary(), ConstraintSpec(Kind.REGEX, "x{200}")
    output_state = state_of(spec, Budget(200), vocabulary)
    runs = [len(output_state.take_forced()) for _ in range(4)]
    assert runs == [64, 64, 64, 8]
    assert output_state.is_over


def test_a_forced_run_is_not_taken_where_the_rest_would_not_fit_behind_it() -> None:
    vocabulary = vocabulary_of([*(bytes([byte]) for byte in range(256)), b"", b"ab", b"bcd"], [256])
    short, roomy = (
        state_of(ConstraintSpec(Kind.WHERE, 'X == "abcd"'), Budget(max_len), vocabulary)
        for max_len in (3, 4)
    )
    assert roomy.take_forced() == tuple(b"abcd"), "as this tokenizer spells it"
    assert short.take_forced() == ()
    assert legal_ids(short, vocabulary) == [ord("a"), 257]


LIKE_SPECIAL = [
    ConstraintSpec(Kind.WHERE, '"<|user|>" in X and len(X) < 20'),
    ConstraintSpec(Kind.WHERE, 'ends_with(X, "<|user|>.") and len(X) <= 12'),
    ConstraintSpec(Kind.WHERE, 'X in ["the cat<|end|>", "dog<|pad|> x"]'),
    ConstraintSpec(Kind.REGEX, r"(a|b)<\|user\|>(c|d)"),
    ConstraintSpec(Kind.REGEX, r"(?=[ab])(a|b)<\|user\|>(c|d)"),
    ConstraintSpec(Kind.JSON_SCHEMA, '{"const": "<|user|>x"}'),
    ConstraintSpec(Kind.LARK, 'start: ("a" | "b") "<|user|>" ("c" | "d")'),
]


@pytest.mark.parametrize("may_truncate", [False, True])
@pytest.mark.parametrize("spec", LIKE_SPECIAL, ids=lambda spec: spec.text)
def test_forced_text_that_looks_like_a_special_token_is_spelled(
    spec: ConstraintSpec, may_truncate: bool
) -> None:
    vocabulary = demo_vocabulary()
    for seed in range(4):
        output_state = state_of(spec, Budget(60, may_truncate=may_truncate))
        output = drawn(output_state, vocabulary, 60, random.Random(seed))
        assert judge_of(spec)(text_of(output, vocabulary), len(output))


SYSTEM_ID, USER_ID, ASSISTANT_ID = 2, 3, 4
WITH_SPECIAL = {
    "forced": f'start: "a" <[{USER_ID}]> "b"',
    "one of two": f'start: "a" (<[{USER_ID}]> | <[{SYSTEM_ID}]> "c")',
    "behind a text": (
        f'start: FREE? <[{USER_ID}]> "ab"\n'
        r"FREE: /[^\U00100000-\U0010FFFF]+/ & ~/(?s:.*)<[|](?s:.*)/"
    ),
    "around JSON": (
        f'start: <[{SYSTEM_ID}]> %json {{"type": "array", "items": {{"type": "string"}},'
        f' "minItems": 2}} (<[{USER_ID}]> "x")* <[{ASSISTANT_ID}]>'
    ),
}


@pytest.mark.parametrize("may_truncate", [False, True])
@pytest.mark.parametrize("name", WITH_SPECIAL)
@pytest.mark.parametrize("seed", range(3))
def test_special_tokens_are_where_the_grammar_has_them_whatever_is_drawn(
    name: str, may_truncate: bool, seed: int
) -> None:
    vocabulary = demo_vocabulary()
    spec = ConstraintSpec(Kind.LARK, WITH_SPECIAL[name])
    budget = Budget(30, may_truncate=may_truncate)
    output_state = state_of(spec, budget)
    output = drawn(output_state, vocabulary, 30, random.Random(seed))
    assert may_truncate or output_state.is_satisfied
    special = [each for each in output if each in (SYSTEM_ID, USER_ID, ASSISTANT_ID)]
    assert may_truncate or special
    if name == "around JSON" and special[-1:] == [ASSISTANT_ID]:
        assert special[0] == output[0] == SYSTEM_ID
        inside = output[1 : output.index(special[1])]
        assert len(json.loads(text_of(inside, vocabulary))) >= 2
    for made in range(len(output) + 1):
        resumed = state_of(spec, budget)
        resumed.replay(tuple(output[:made]))
        resumed.take_forced()
        assert resumed.fork().is_satisfied or len(legal_ids(resumed, vocabulary))


def test_a_forced_special_token_is_taken_with_the_text_beside_it() -> None:
    output_state = state_of(ConstraintSpec(Kind.LARK, WITH_SPECIAL["forced"]), Budget(9))
    assert output_state.take_forced() == (*spelled("a"), USER_ID, *spelled("b"))
    assert output_state.is_over


def test_a_tokenizer_that_puts_a_space_in_front_forces_nothing_else() -> None:
    class Spaced(TokenList):
        def __call__(self, text: bytes | str) -> list[int]:
            return super().__call__(b" " + (text.encode() if isinstance(text, str) else text))

    vocabulary = vocabulary_of([*(bytes([byte]) for byte in range(256)), b""], [256], Spaced)
    output_state = state_of(
        ConstraintSpec(Kind.REGEX, "[ab]cd[xy]"), Budget(9, may_truncate=True), vocabulary
    )
    output_state.advance(ord("a"))
    assert output_state.take_forced() == ()
    assert legal_ids(output_state, vocabulary) == [ord("c")]


def test_a_mask_is_not_quick_where_the_budget_leaves_room_for_one_completion_alone() -> None:
    spec = ConstraintSpec(Kind.WHERE, r'regex(X, r"\w{40} [a-c]{60}")')
    needed_len = state_of(spec, Budget(10_000)).needed_len

    roomy, tight = (state_of(spec, Budget(max_len)) for max_len in (2 * needed_len, needed_len))

    assert needed_len > 0
    assert roomy.is_quick
    assert not tight.is_quick


VOCABULARY = demo_vocabulary()
STRING = {"type": "string"}
DATE = {"type": "string", "format": "date"}
MOMENT = {"type": "string", "format": "date-time"}
SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
FROM_TEN = {"type": "integer", "minimum": 10}

BOX = record({"label": STRING, "score": SHARE, "x": FROM_TEN})


def followed(spec: ConstraintSpec, text: str, slack: int) -> str:
    """As much of the text as is accepted with so many tokens more than it has."""
    token_ids = VOCABULARY.backend.tokenize_str(text)
    output_state = state_of(spec, Budget(len(token_ids) + slack))
    for count, token_id in enumerate(token_ids):
        if not output_state.check(token_id):
            return text_of(token_ids[:count], VOCABULARY)
        output_state.advance(token_id)
    return text


def tool(parameters: Any, *, allows_text: bool) -> ConstraintSpec:
    """The grammar of an answer that may call a tool `send`, or has to."""
    allowed = AllowedTools(
        (AllowedTool("send", parameters, "tools"),), allows_text, may_repeat=True
    )
    return ConstraintSpec(Kind.LARK, tool_grammar(allowed, HERMES), Whitespace.OPTIONAL)


def call(arguments: Any) -> str:
    told = json.dumps(arguments)
    return f'<tool_call>\n{{"name": "send", "arguments": {told}}}\n</tool_call>'


@pytest.mark.parametrize("row", table("guiding/followed"), ids=lambda row: row["name"])
def test_an_instance_can_be_written_whatever_is_left_out_elsewhere(row: Json) -> None:
    spec, text = ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(row["schema"])), row["text"]
    assert [followed(spec, text, slack) for slack in (2, 20, 1000)] == [text] * 3


GUEST = open_record({"email": {"type": "string", "format": "email"}})
GUESTS = {"type": "array", "items": GUEST, "minItems": 1}
# Parameters, and arguments as short as they may be.
CALLS: list[tuple[Any, Any]] = [
    ({"type": "object"}, {}),
    (record({"to": STRING}), {"to": ""}),
    (record(dict.fromkeys("abcd", STRING)), dict.fromkeys("abcd", "")),
    (
        open_record(dict.fromkeys(("to", "subject", "body"), STRING)),
        {"to": "", "subject": "", "body": ""},
    ),
    (open_record({"a": FROM_TEN, "b": FROM_TEN}), {"a": 10, "b": 10}),
    (open_record({"p": SHARE, "day": DATE}), {"p": 0.1, "day": "2000-01-01"}),
    (open_record({"box": BOX}), {"box": {"label": "", "score": 0.5, "x": 10}}),
    (
        open_record({"title": STRING, "start": MOMENT, "who": GUESTS}),
        {"title": "", "start": "2000-01-01T00:00:00Z", "who": [{"email": "a@b.cd"}]},
    ),
]


@pytest.mark.parametrize(("parameters", "arguments"), CALLS, ids=str)
@pytest.mark.parametrize("allows_text", [True, False])
def test_a_tool_can_be_called_and_is_told_to_need_no_more_than_that(
    parameters: Any, arguments: Any, *, allows_text: bool
) -> None:
    text = call(arguments)
    spec = tool(parameters, allows_text=allows_text)
    assert [followed(spec, text, slack) for slack in (2, 100, 1000)] == [text] * 3
    known_len = len(VOCABULARY.backend.tokenize_str(text))
    assert state_of(spec, Budget(known_len + 2)).needed_len <= known_len + 2


def test_any_of_many_tools_can_be_called() -> None:
    pay = record({"amount": SHARE, "currency": {"enum": ["EUR", "USD"]}, "when": DATE})
    parameters = {"find": record({"q": STRING}), "pay": pay, "send": open_record({"box": BOX})}
    tools = tuple(AllowedTool(name, each, "tools") for name, each in parameters.items())
    grammar = tool_grammar(AllowedTools(tools, allows_text=True, may_repeat=True), HERMES)
    spec = ConstraintSpec(Kind.LARK, grammar, Whitespace.OPTIONAL)
    text = call({"box": {"label": "a", "score": 0.5, "x": 10}})
    assert followed(spec, text, 2) == text


BYTES = byte_vocabulary()


def state_under_stops(
    pattern: str, strings: Sequence[str], kept: bool = True, may_truncate: bool = False
) -> OutputConstraintState:
    stops = StopRule(tuple(strings), kept)
    budget = Budget(60, may_truncate=may_truncate)
    return state_of(ConstraintSpec(Kind.REGEX, pattern), budget, BYTES, stops=stops)


def legal_texts(output_state: OutputConstraintState) -> list[bytes]:
    return [BYTES.tokens[token_id] for token_id in legal_ids(output_state, BYTES)]


def as_shown(output: str, stops: StopRule) -> str:
    """The text that a router makes of an output: it ends at the first stop string."""
    stopping = StopMatcher(stops.strings, stops.kept)
    return stopping.push(output) + stopping.flush()


STRINGS = st.lists(
    st.sampled_from(["\n", "\n\n", " ", ":", ",", "0", "1", "x", "e", "ab", "the", "ca", "}", "é"]),
    max_size=3,
    unique=True,
)


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(CASES)),
    strings=STRINGS,
    kept=st.booleans(),
    slack=st.integers(0, 12),
    seed=st.integers(0, 10**6),
    is_demo=st.booleans(),
)
def test_what_is_left_of_an_output_at_its_first_stop_string_satisfies_the_constraint(
    name: str, strings: list[str], kept: bool, slack: int, seed: int, is_demo: bool
) -> None:
    vocabulary: Vocabulary = demo_vocabulary() if is_demo else BYTES
    spec, stops = CASES[name], StopRule(tuple(strings), kept)
    try:
        max_len = needed_len(spec, vocabulary, stops) + slack
    except (Contradiction, TooComplex):
        return
    output_state = state_of(spec, Budget(max_len), vocabulary, stops=stops)
    output = drawn(output_state, vocabulary, max_len, random.Random(seed))
    assert output_state.is_satisfied
    assert len(output) <= max_len
    text = text_of(output, vocabulary)
    shown = as_shown(text, stops)
    # What is cut off took a token or more, so that the count of tokens is that of the output.
    satisfies = judge_of(spec)
    is_with_string = any(map(text.endswith, stops.strings)) and satisfies(text, len(output))
    assert is_with_string or satisfies(shown, len(output)), shown


COM = r"\w+@\w+\.com\n"


@pytest.mark.parametrize(
    ("pattern", "strings", "kept", "written", "legal", "masked"),
    [
        # A kept string ends a text that is complete with it, and is masked where that goes on.
        ("a+b|a+bc", "b", True, b"aa", "ab", "c"),
        ("[ab]+c", "b", True, b"a", "ac", "b"),
        # A dropped one ends a text that was complete before it; it may begin inside a token.
        ("a(bcd)?", ("bc",), False, b"ab", "c", "bd"),
        ("a(bcd|be)", ("bc",), False, b"ab", "e", "c"),
        # Of strings that end at the same byte the longest is dropped.
        ("xa|xabcd|xabd", ("c", "bc"), False, b"xab", "cd", ""),
        ("xa|xabcd|xabd", ("c",), False, b"xab", "d", "c"),
        # A token that runs past a string is masked.
        ("[a-z ]+", ("th",), True, b"t", "h", ["the"]),
        ("[a-z ]+", ("th",), True, b"", "t", ["the"]),
        # Text behind the beginning of a string is followed, however long it is.
        ("a*(b!|c)", ("aaab",), False, b"a" * 40, "c", "b"),
        # A string that is the end of the text ends it.
        (COM, "\n", True, b"a@b.com", "\n", " "),
        (COM, "\n", False, b"a@b.com", "\n", " "),
    ],
)
@pytest.mark.parametrize("may_truncate", [False, True])
def test_strings_end_texts_that_are_complete_and_are_masked_elsewhere(
    pattern: str,
    strings: Sequence[str],
    kept: bool,
    written: bytes,
    legal: str,
    masked: Sequence[str],
    may_truncate: bool,
) -> None:
    output_state = state_under_stops(pattern, strings, kept, may_truncate)
    output_state.replay(tuple(written))
    taken = legal_texts(output_state)
    for each in legal:
        assert each.encode() in taken
        twin = output_state.fork()
        assert twin.check(ord(each))
        twin.advance(ord(each))
        assert twin.is_over or not (written.decode() + each).endswith(tuple(strings))
    for each in masked:
        assert each.encode() not in taken
        with pytest.raises(IllegalToken):
            output_state.advance(BYTES.tokens.index(each.encode()))


@pytest.mark.parametrize(
    ("strings", "kept", "may_truncate"), [("c!", True, False), ("c", False, True)]
)
def test_no_token_leads_where_only_a_stop_string_could_follow(
    strings: str, kept: bool, may_truncate: bool
) -> None:
    output_state = state_under_stops("ab*c!|d", strings, kept, may_truncate)
    assert [output_state.check(ord(letter)) for letter in "ad"] == [False, True]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    "spec",
    [
        ConstraintSpec(Kind.REGEX, "ab+c"),
        ConstraintSpec(Kind.REGEX, "[ac]*bc"),
        ConstraintSpec(Kind.LARK, 'start: /[ac]/* "bc"'),
        ConstraintSpec(Kind.WHERE, '"b" in X and not ends_with(X, "b")'),
    ],
)
def test_a_constraint_that_needs_a_stop_string_inside_is_refused_with_it(
    spec: ConstraintSpec, kept: bool
) -> None:
    with pytest.raises(TooComplex, match='none of the stop strings "b", "zz" before its end'):
        state_of(spec, Budget(9), BYTES, stops=StopRule(("b", "zz"), kept))


@pytest.mark.parametrize(
    ("pattern", "stops", "needed_len", "first"),
    [
        ("b|aaa", StopRule(token_ids=(ord("b"),)), 3, "a"),
        ("a!|b|c{4}", StopRule(("a",), False, (ord("b"),)), 4, "c"),
    ],
)
def test_a_known_completion_keeps_clear_of_stop_tokens_and_strings(
    pattern: str, stops: StopRule, needed_len: int, first: str
) -> None:
    output_state = state_of(
        ConstraintSpec(Kind.REGEX, pattern), Budget(9), BYTES, stops=stops, takes_forced=False
    )
    assert output_state.needed_len == needed_len
    assert output_state.completion_token() == ord(first)
    assert legal_texts(output_state) == [first.encode()]


def test_a_dropped_string_takes_no_brace_from_json() -> None:
    spec = ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "object"}')
    with pytest.raises(TooComplex, match="before its end"):
        state_of(spec, Budget(30), BYTES, stops=StopRule(("}",), kept=False))
    assert state_of(spec, Budget(30), BYTES, stops=StopRule(("}",))).needed_len == 2


def test_forced_runs_end_before_a_stop_string() -> None:
    output_state = state_under_stops("abcdx?|abcdy", ["cd"])
    forced = b"".join(BYTES.tokens[token_id] for token_id in output_state.take_forced())
    assert forced == b"abc"
    assert legal_texts(output_state) == [b"d"]


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize(
    ("kind", "text", "strings", "needed_len"),
    [
        (Kind.WHERE, '"fox" in X', (" ",), 3),
        (Kind.WHERE, 'ends_with(X, "fox")', (" ", "a"), 3),
        (Kind.WHERE, '"fox" in X and "cat" in X', (" ",), 6),
        (Kind.WHERE, '"fox" in X and len(X) >= 9', (" ", "\n"), 5),
        (Kind.WHERE, "len(words(X)) >= 6", (" ",), 6),
        (Kind.WHERE, "len(tokens(X)) == 7", ("e", " "), 7),
        (Kind.REGEX, ".*fox.*", (" ",), 3),
    ],
)
def test_a_shortest_text_that_meets_a_stop_string_gives_way_to_one_that_meets_none(
    kind: Kind, text: str, strings: tuple[str, ...], needed_len: int, kept: bool
) -> None:
    spec, stops = ConstraintSpec(kind, text), StopRule(strings, kept)
    output_state = state_of(spec, Budget(40), BYTES, stops=stops)
    assert output_state.needed_len <= needed_len
    output = drawn(output_state, BYTES, 40, random.Random(text))
    assert output_state.is_satisfied
    assert judge_of(spec)(as_shown(text_of(output, BYTES), stops), len(output))
