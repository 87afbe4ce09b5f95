"""Strings that stand in no answer, beside the grammars that are asked for."""

import json
import time

import pytest

from constraints.spec import Kind
from router.http.openai.formats import without
from router.request.errors import ConstraintRefused, InvalidRequest
from router.request.grammar import RawGrammar


def test_parts_are_told_by_the_fields_that_hold_them() -> None:
    name, grammar = without(["a", "b`"], ("guided_regex", RawGrammar(Kind.REGEX, "[ab]")))
    assert name == "guided_regex"
    assert grammar.spellings == {
        'regex(X, "[ab]")': '`guided_regex` "[ab]"',
        '"a" not in X': '`bad_words` "a"',
        '"b`" not in X': '`bad_words` "b`"',
    }


@pytest.mark.parametrize(
    ("words", "pattern", "fields"),
    [
        (["b" * 99_990], None, "`bad_words` must have at most 100000 bytes .* Given: 100001"),
        (["b" * 60_000], "a" * 60_000, "`bad_words` and `guided_regex` must .* Given: 120028"),
    ],
)
def test_words_that_are_too_long_together_are_refused(
    words: list[str], pattern: str | None, fields: str
) -> None:
    shaped = None if pattern is None else ("guided_regex", RawGrammar(Kind.REGEX, pattern))
    with pytest.raises(InvalidRequest, match=fields) as refused:
        without(words, shaped)
    assert refused.value.field == "bad_words"


def test_each_word_costs_what_the_refusal_says_beside_its_bytes() -> None:
    (_, few), (_, more) = (without([f"b{each}" for each in range(count)]) for count in (5, 9))
    assert isinstance(few.value, str)
    assert isinstance(more.value, str)
    assert len(more.value) - len(few.value) == 4 * (16 + len("b8"))


@pytest.mark.parametrize(
    ("choices", "words", "needed"),
    [
        (["a", "ba"], ["a"], ["a"]),
        (["ab", "b"], ["c", "a", "b"], ["b"]),
        (["a", "b"], ["b", "a"], ["a", "b"]),
    ],
)
def test_choices_of_which_none_is_left_contradict_the_words_that_they_have(
    choices: list[str], words: list[str], needed: list[str]
) -> None:
    with pytest.raises(ConstraintRefused) as refused:
        without(words, ("guided_choice", RawGrammar(Kind.CHOICE, choices)))

    written = json.dumps(choices, separators=(",", ":"))
    parts = [f"`guided_choice` {written}", *(f'`bad_words` "{word}"' for word in needed)]
    told = f"{', '.join(parts[:-1])} and {parts[-1]}"
    assert str(refused.value) == f"`guided_choice`: nothing satisfies both {told}"
    assert (refused.value.reason, refused.value.field) == ("contradiction", "guided_choice")
    assert refused.value.details == {"parts": parts}


def test_many_words_that_leave_no_choice_are_all_parts_but_not_all_in_the_message() -> None:
    words = [f"b{each}." for each in range(30)]
    with pytest.raises(ConstraintRefused, match=r"`bad_words` \"b18\.\" and 11 others$") as refused:
        without(words, ("guided_choice", RawGrammar(Kind.CHOICE, words)))
    assert len(refused.value.details["parts"]) == 31  # type: ignore[arg-type]


@pytest.mark.alone
@pytest.mark.parametrize("choices", [["axzz"] * 2_000, [f"a{each}" for each in range(60_000)]])
def test_many_words_and_choices_take_little_time(choices: list[str]) -> None:
    began_s = time.thread_time()
    with pytest.raises(ConstraintRefused):
        without(["zz", "a"] * 20_000, ("guided_choice", RawGrammar(Kind.CHOICE, choices)))
    assert time.thread_time() - began_s < 0.5
