"""What the paper's evaluation counts, and how it is drawn."""

import json
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from bench.paper.__main__ import RESULTS, main
from bench.paper.cases import DRAWS, draw
from bench.paper.counting import (
    Counts,
    Generated,
    ScoredOptions,
    as_program,
    as_sent,
    in_full_chunks,
)
from bench.paper.curve import Panel, svg
from bench.paper.lines import lines_of_code
from bench.paper.tools import calculate

# A prompt of 10, a hole of 6 of which 4 stay, 3 fixed tokens, a hole of 5, options of 2 and 3.
HOLES = (
    Generated(prompt_len=10, output_len=6, kept_len=4),
    Generated(prompt_len=17, output_len=5, kept_len=5),
    ScoredOptions(prompt_len=24, option_lens=(2, 3)),
)


def test_each_request_and_each_option_is_a_call_that_bills_its_prompt() -> None:
    assert as_sent(HOLES) == Counts(
        num_calls=4, num_queries=16, billable_tokens=16 + 22 + 26 + 27, num_requests=3
    )


def test_a_program_is_one_call_that_bills_its_fixed_text_once() -> None:
    assert as_program(HOLES) == Counts(
        num_calls=3, num_queries=16, billable_tokens=13 + 11 + 26 + 27, num_requests=3
    )


def test_a_program_of_one_hole_is_counted_as_it_was_sent() -> None:
    assert as_program(HOLES[:1]) == as_sent(HOLES[:1])


def test_a_chunk_that_the_model_ended_early_counts_in_full() -> None:
    ended = Generated(prompt_len=10, output_len=6, kept_len=6, chunk=30)
    assert in_full_chunks([ended]).num_queries == 30
    assert in_full_chunks([ended]).billable_tokens == 40
    assert as_sent([ended]).num_queries == 6


PROGRAM = '''
"""Words about it."""
from tools import calculate
argmax
    # A comment.
    "Only text\\n"
    "Text, {and} a value\\n"
    "With a [HOLE]" where len(HOLE) < 3
    for number in range(3):
        "[OTHER: int]"
        "[[no hole]]"
where
    not "a" in OTHER
'''


def test_lines_count_without_text_comments_and_imports() -> None:
    # argmax, a value, a hole, the loop, a hole, where and its condition.
    assert lines_of_code(PROGRAM) == 7


def test_prompt_text_counts_alike_in_a_program_and_in_a_baseline() -> None:
    assert lines_of_code('prompt += "Only text"\n') == lines_of_code('"Only text"\n') == 0
    assert lines_of_code('prompt += f"A {value}"\n') == lines_of_code('"A {value}"\n') == 1


def test_the_page_is_that_of_the_recorded_figures(tmp_path: Path) -> None:
    figures = (RESULTS / "paper.json").read_text()
    (tmp_path / "paper.json").write_text(figures)
    main(["--rewrite", "--results", str(tmp_path)])
    assert (tmp_path / "paper.md").read_text() == (RESULTS / "paper.md").read_text()
    assert json.loads((tmp_path / "paper.json").read_text()) == json.loads(figures)


def test_brackets_alone_on_their_lines_do_not_count() -> None:
    assert lines_of_code("call(\n    first,\n    second,\n)\n") == 3


@pytest.mark.parametrize("study", sorted(DRAWS))
def test_cases_are_the_same_in_every_run_and_differ(study: str) -> None:
    cases = draw(study, 20)
    assert draw(study, 5) == cases[:5]
    assert len({case.questions for case in cases}) == 20
    assert all(case.target in case.options for case in cases if case.options)


@pytest.mark.parametrize(
    ("term", "result"),
    [("3+4", "7"), ("9*9", "81"), ("8/3", "?"), ("2-5", "?"), ("__import__", "?")],
)
def test_the_calculator_takes_sums_alone(term: str, result: str) -> None:
    assert calculate(term) == result


def test_the_figure_is_well_formed_and_draws_each_chunk_size() -> None:
    falling = Panel("A study", {10: 7.0, 20: 5.0, 30: 4.5}, program=2.0)
    drawn = ET.fromstring(svg([("calls", [falling, falling]), ("tokens & more", [falling])]))
    space = "{http://www.w3.org/2000/svg}"
    circles = drawn.findall(f"{space}circle")
    assert len(circles) == 9
    heights = [float(circle.attrib["cy"]) for circle in circles[:3]]
    assert all(before < after for before, after in pairwise(heights))
