"""How queries look, without a terminal and without a query."""

from io import StringIO

import pytest
from rich.console import Console

from client.calls import Constraint, Usage
from client.cli.query_view import LiveView, Palette, described, finished, outcome, probabilities
from client.query import Choice, Result, Span, State


def shown(view: object, *, height: int = 10, width: int = 20) -> list[str]:
    """The lines of a screen, without colours."""
    out = StringIO()
    Console(file=out, width=width, height=height, force_terminal=False).print(view)
    return out.getvalue().splitlines()


def state(prompt: str, trace: int = 0, hole: str | None = "X", **more: object) -> State:
    span = Span("X", prompt.index("<") + 1, len(prompt)) if "<" in prompt else None
    spans = () if span is None else (span,)
    return State(trace=trace, prompt=prompt, spans=spans, hole=hole, **more)  # type: ignore[arg-type]


def test_the_hole_that_fills_has_its_constraint_below() -> None:
    view = LiveView(Palette())
    view.show(state("Say <he", constraint=Constraint("where", "len(X) < 9"), stop=("\n",)))
    lines = shown(view, width=60)
    assert lines == ["Say <he█", "  [X] where: len(X) < 9; stops at '\\n'"]


def test_conditions_call_the_hole_by_its_name_and_patterns_stay() -> None:
    where = Constraint("where", 'len(sentences(X)) == 2 and "X" not in X')
    assert described(where, (), "STORY") == (
        'where: len(sentences(STORY)) == 2 and "X" not in STORY'
    )
    assert described(Constraint("regex", "X+"), (), "STORY") == "regex: X+"


def test_a_prompt_that_is_too_long_for_the_screen_shows_its_end() -> None:
    view = LiveView(Palette())
    view.show(state("\n".join(map(str, range(100))) + "\n<end"))
    lines = shown(view, height=10)
    assert len(lines) == 8
    assert lines[-3:] == ["99", "<end█", "  [X]"]


@pytest.mark.parametrize("num_traces", [2, 3, 5])
def test_traces_share_the_screen(num_traces: int) -> None:
    view = LiveView(Palette())
    for trace in range(num_traces):
        view.show(state("\n".join("abcdefghij") + f"\n<{trace}", trace))
    lines = shown(view, height=24)
    assert len(lines) <= 24
    assert [line for line in lines if "█" in line] == [f"<{trace}█" for trace in range(num_traces)]


def test_a_notice_stays_until_there_is_something_else() -> None:
    view = LiveView(Palette())
    view.show_notice("[loading]")
    assert shown(view) == ["[loading]"]
    view.show(state("<a"))
    assert shown(view) == ["<a█", "  [X]"]


def test_control_characters_are_made_visible_and_spans_stay_where_they_are() -> None:
    text = Palette().coloured("\x9ba\x1b", [Span("X", 1, 2)])
    assert text.plain == "<9b>a␛"
    assert [(span.start, span.end) for span in text.spans] == [(4, 5)]


def test_long_constraints_are_cut_and_stand_in_one_line() -> None:
    said = described(Constraint("lark", "start: a\n" * 100), (), "X")
    assert said.startswith("lark: start: a start: a")
    assert len(said) < 320


def test_the_outcome_names_variables_values_and_shares() -> None:
    choice = Choice(plain={"no": -1.5, "yes": -0.25}, normalised={"no": -0.75, "yes": -0.625})
    result: Result[object] = Result(
        prompt="yes",
        spans=(Span("X", 0, 3),),
        messages=(),
        variables={"X": "yes"},
        value=3,
        distributions={"X": choice},
        logprob=-0.25,
        usage=Usage(),
        requests=(),
    )
    assert outcome(result, returns=True) == [
        "X = 'yes'",
        "returned 3",
        "P(X)                           plain   by length",
        "  'yes'  ################      0.7788  0.5353",
        "  'no'   ####                  0.2231  0.4724",
    ]
    assert "X = 'yes'" in shown(finished(result, Palette(), returns=False), width=80)


def test_probabilities_come_with_the_largest_first() -> None:
    assert list(probabilities({"a": -2.0, "b": -1.0})) == ["b", "a"]
