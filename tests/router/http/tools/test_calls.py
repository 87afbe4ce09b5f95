"""Calls are told from text as they come, the same however the text is cut into pieces."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proto.contract import FinishReason
from router.http.tools.calls import (
    CallArguments,
    CallBegun,
    CallFormat,
    CallReader,
    Piece,
    TextPiece,
)
from router.request.request import Finished
from router.text.template_traits import HERMES, CallSyntax
from tests.router.http.tools.calls import LLAMA, MISTRAL, SYNTAXES, Call, written

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\{}<é', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text('k"}', max_size=2), inner, max_size=2)
    ),
    max_leaves=5,
)
CALLS = st.lists(
    st.tuples(
        st.sampled_from(["get", "get_more", "a-b"]),
        st.dictionaries(st.text("xy", max_size=2), VALUES, max_size=2),
    ),
    max_size=3,
)
COMPLETE = FinishReason.CONSTRAINT_COMPLETE
TEXTS = st.text(alphabet="<tool_ca[TOLCAS]{ x", max_size=12)


def told(syntax: CallSyntax, texts: list[str], *, allows_text: bool = True) -> list[Piece]:
    reader = CallReader(syntax, allows_text=allows_text)
    pieces = [piece for text in texts for piece in reader.push(text)]
    return pieces + reader.finish()


def gathered(pieces: list[Piece]) -> tuple[str, list[list[str]]]:
    """The text, and names with arguments."""
    said: str = ""
    calls: list[list[str]] = []
    for piece in pieces:
        if isinstance(piece, TextPiece):
            assert not calls
            said += piece.text
        elif isinstance(piece, CallBegun):
            assert piece.index == len(calls)
            calls.append([piece.name, ""])
        else:
            assert piece.index == len(calls) - 1
            calls[-1][1] += piece.text
    return said, calls


def cut(text: str, places: list[int]) -> list[str]:
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


@given(
    name=st.sampled_from(sorted(SYNTAXES)),
    calls=CALLS,
    said=TEXTS,
    places=st.lists(st.integers(0, 500), max_size=12),
)
def test_any_cut_of_an_answer_tells_the_same_calls(
    name: str, calls: list[Call], said: str, places: list[int]
) -> None:
    syntax = SYNTAXES[name]
    if syntax.only_at_start:
        said = "" if calls else said.lstrip("{")
        calls = calls[:1]
    else:
        assume(syntax.trigger not in said)
    text = written(syntax, calls, said)

    found = gathered(told(syntax, cut(text, places)))

    expected = [[called, json.dumps(arguments)] for called, arguments in calls]
    assert found == (said, expected)


@pytest.mark.parametrize("syntax", SYNTAXES.values(), ids=SYNTAXES)
def test_arguments_are_told_as_they_come(syntax: CallSyntax) -> None:
    text = written(syntax, [("get", {"city": "Rome"})])
    pieces = told(syntax, list(text), allows_text=False)

    assert pieces[0] == CallBegun(0, "get")
    assert all(isinstance(piece, CallArguments) and len(piece.text) == 1 for piece in pieces[1:])


def test_text_is_held_back_only_where_it_may_become_a_call() -> None:
    reader = CallReader(HERMES, allows_text=True)

    assert reader.push("see <tool") == [TextPiece("see ")]
    assert reader.push("box> there") == [TextPiece("<toolbox> there")]
    assert reader.push("<tool_call") == []
    assert reader.finish() == [TextPiece("<tool_call")]


def test_an_object_within_a_text_is_no_call_where_calls_begin_answers() -> None:
    assert told(LLAMA, ["a ", '{"name": "get"}']) == [TextPiece("a "), TextPiece('{"name": "get"}')]


@pytest.mark.parametrize("length", range(1, 40))
def test_a_call_that_is_cut_is_told_as_far_as_it_goes(length: int) -> None:
    text = written(MISTRAL, [("get", {"city": "Rome"})])[:length]
    said, calls = gathered(told(MISTRAL, [text]))

    whole = '{"city": "Rome"}'
    assert said == (text if length < len("[TOOL_CALLS]") else "")
    assert all(name == "get" and whole.startswith(arguments) for name, arguments in calls)


def ending(text: str, *, satisfied: bool = True) -> Finished:
    return Finished(FinishReason.LENGTH, text, "", 1, 0, 1, 0, constraint_satisfied=satisfied)


@pytest.mark.parametrize("name", sorted(SYNTAXES))
def test_tokens_that_end_right_behind_whole_calls_have_cut_nothing(name: str) -> None:
    syntax = SYNTAXES[name]
    calls: list[Call] = [("get", {"city": "}"}), ("wait", {})][: 1 if syntax is LLAMA else 2]
    text = written(syntax, calls, "" if syntax is LLAMA else "So.")
    calling = CallFormat(syntax, allows_text=True)

    lengths = range(len(text) + 1)
    whole = [n for n in lengths if calling.settled(ending(text[:n])).reason is COMPLETE]

    # Hermes' calls are closed one by one, and whitespace behind one is no other.
    first = len(written(syntax, calls[:1], "So."))
    assert whole == ([first, first + 1, len(text)] if syntax is HERMES else [len(text)])
    assert calling.settled(ending(text, satisfied=False)).reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "reason", [each for each in FinishReason if each is not FinishReason.LENGTH]
)
def test_every_other_end_is_told_as_it_is(reason: FinishReason) -> None:
    end = replace(ending(written(HERMES, [("get", {})])), reason=reason)

    assert CallFormat(HERMES, allows_text=True).settled(end) is end
