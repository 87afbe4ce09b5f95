"""docs/constraints.md says what is true: its Python runs, its tables hold, its errors are shown."""

import ast
import re
from pathlib import Path

import pytest

from constraints.errors import Contradiction, Malformed
from constraints.where.conflict import contradiction, is_plainly_empty
from constraints.where.evaluate import holds
from constraints.where.functions import FUNCTIONS
from constraints.where.parser import parse

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "constraints.md").read_text()
LANGUAGE = PAGE[PAGE.index("## `where`") : PAGE.index("## JSON schemas")]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def rows() -> list[tuple[str, str, str]]:
    table = LANGUAGE[LANGUAGE.index("| condition | holds for") :].split("\n\n")[0]
    cells = [line.strip("|").split(" | ") for line in table.splitlines()[2:]]
    return [(quoted(one)[0], two, three) for one, two, three in cells]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(("written", "held", "refused"), rows())
def test_conditions_hold_for_what_the_page_says(written: str, held: str, refused: str) -> None:
    expression = parse(written)
    for literal in quoted(held):
        assert holds(expression, ast.literal_eval(literal)), literal
    for literal in quoted(refused):
        assert not holds(expression, ast.literal_eval(literal)), literal


@pytest.mark.parametrize("block", blocks("error"))
def test_its_errors_are_shown(block: str) -> None:
    written, shown = block.rstrip("\n").split("\n\n")
    with pytest.raises(Malformed) as caught:
        parse(written)
    assert str(caught.value) == shown


@pytest.mark.parametrize("block", blocks("contradiction"))
def test_its_contradictions_are_found(block: str) -> None:
    written, parts = block.rstrip("\n").split("\n\n")
    found = contradiction(parse(written), is_plainly_empty)
    assert isinstance(found, Contradiction)
    assert found.parts == tuple(parts.split("\n"))


def test_its_shell_lines_ask_for_what_can_be_read() -> None:
    asked = re.findall(r"^ask '(.*)'$", PAGE, re.MULTILINE)
    asked += re.findall(r"--type where --constraint '([^']*)'", PAGE)
    asked += [
        ast.literal_eval(f'"{value}"')
        for value in re.findall(r'"where"(?:, "value")?: "((?:[^"\\]|\\.)*)"', PAGE)
    ]
    assert len(asked) >= 4
    for written in asked:
        parse(written)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_names_every_function(name: str) -> None:
    assert re.search(rf"`[^`]*\b{name}\(", LANGUAGE)
