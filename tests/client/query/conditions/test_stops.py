"""Where stop phrases end a text, and what of it stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.query.conditions.plan import StopMode
from client.query.conditions.planner import plan
from client.query.conditions.stops import Stops
from router.text.output_text import StopMatcher
from tests.client.query.conditions.clauses import term

phrases = st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3).map(tuple)


@given(phrases, phrases, st.lists(st.text("ab.", max_size=4), max_size=4))
def test_a_text_ends_as_the_server_ends_it(
    kept: tuple[str, ...], dropped: tuple[str, ...], pieces: list[str]
) -> None:
    matcher = StopMatcher(kept, keep=True, dropped=dropped)
    shown = "".join(map(matcher.push, pieces)) + matcher.flush()

    assert Stops(kept, dropped).truncate("".join(pieces)) == shown


@pytest.mark.parametrize(
    ("output", "shown"),
    [("One. Two", "One."), ("One\nTwo.", "One"), ("One", "One"), ("One.\n", "One."), ("\n.", "")],
)
def test_phrases_that_stay_and_phrases_that_go_stand_together(output: str, shown: str) -> None:
    clause = term("stops_at(X, '.') and stops_before(X, '\\n')")
    made = plan((clause,), "X", None, {}, StopMode.CUT)

    assert made.stop == (".", "\n")
    assert made.keeps_stop
    assert made.prompt_text(output) == made.value(output) == shown


def test_a_refused_text_is_told_without_what_is_dropped() -> None:
    clause = term("stops_at(X, '.') and stops_before(X, '\\n')")
    made = plan((clause,), "X", None, {}, StopMode.CUT, ("One\n",))

    assert made.constraint is not None
    assert made.constraint.value == 'stops_at(X, ".") and stops_before(X, "\\n") and X != "One"'


@pytest.mark.parametrize("operator", ["stops_at", "stops_before"])
def test_either_of_two_phrases_ends_a_hole_whichever_word_joins_them(operator: str) -> None:
    either, both = (
        plan((term(f"{operator}(X, '.') {word} {operator}(X, '!')"),), "X", None, {}, StopMode.CUT)
        for word in ("or", "and")
    )

    assert either.stop == both.stop == (".", "!")
    assert either.keeps_stop is (operator == "stops_at")
    assert either.constraint is None
