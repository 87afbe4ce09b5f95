"""Where the answer begins behind a thought, however the text comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.spec import ThoughtRule
from router.text.thought_span import ThoughtSpan

MAYBE = ThoughtRule("<t>", "</t>", is_begun=False)
BEGUN = ThoughtRule("<t>", "</t>", is_begun=True)


def followed(rule: ThoughtRule, pieces: list[str]) -> tuple[str, str]:
    """What is before the answer, and the answer."""
    span = ThoughtSpan(rule)
    before = answer = ""
    for piece in pieces:
        added = span.push(piece)
        assert not (answer and added[0])
        before += added[0]
        answer += added[1]
    return before, answer + span.flush()


@pytest.mark.parametrize(
    ("rule", "text", "before"),
    [
        (BEGUN, "a b</t>\n\nc", "a b</t>\n\n"),
        (BEGUN, "</t>c", "</t>"),
        (BEGUN, "a<t></t></t>", "a<t></t>"),
        (BEGUN, "a</t>     c", "a</t>    "),
        (BEGUN, "a </t", "a </t"),
        (BEGUN, "<</t>c", "<</t>"),
        (MAYBE, " \n<t>a</t> c", " \n<t>a</t> "),
        (MAYBE, "c <t>a</t>", ""),
        (MAYBE, "\nc", "\n"),
        (MAYBE, "<te", ""),
        (MAYBE, "<t", ""),
        (MAYBE, "     <t>a</t>", "    "),
    ],
)
def test_an_answer_begins_behind_its_thought(rule: ThoughtRule, text: str, before: str) -> None:
    assert followed(rule, [text]) == (before, text[len(before) :])


@given(
    pieces=st.lists(st.sampled_from(["<", "t", ">", "/", "</t>", "<t>", "\n", " ", "a"])),
    is_begun=st.booleans(),
)
def test_it_does_not_matter_how_a_text_is_cut(pieces: list[str], is_begun: bool) -> None:
    rule = BEGUN if is_begun else MAYBE
    whole = "".join(pieces)
    before, answer = followed(rule, pieces)
    assert before + answer == whole
    assert (before, answer) == followed(rule, [whole])
    assert (before, answer) == followed(rule, list(whole))
