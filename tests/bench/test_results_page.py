"""The commands of measurements, on the page of figures and in the documentation, can be run today.

A command of an older state is marked: behind "version 0.1's" or "5f34ab12's", which names it.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "bench" / "results" / "README.md"
PAGES = [
    FIGURES,
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
_COMMAND = re.compile(r"(version 0\.1's |5f34ab12's )?`python -m (bench[\w.]*)([^`]*)`")
_FLAG = re.compile(r"(?<!\S)\[?(--[\w-]+)")
_TESTS = re.compile(r"\btests/[\w/]+\.py\b")


def commands_of_today(text: str) -> list[tuple[str, str]]:
    """Modules, with what stands behind each."""
    return [(module, rest) for mark, module, rest in _COMMAND.findall(text) if not mark]


def unknown(module: str, rest: str) -> list[str]:
    """What of a command there is not: the module, or flags that no file of bench has."""
    if find_spec(module) is None:
        return [module]
    sources = "".join(path.read_text() for path in (ROOT / "bench").rglob("*.py"))
    return [flag for flag in _FLAG.findall(rest) if f'"{flag}"' not in sources]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_measurement_that_a_page_names_can_be_run_or_is_marked(page: Path) -> None:
    text = page.read_text()
    assert [each for command in commands_of_today(text) for each in unknown(*command)] == []


def test_a_program_or_flag_that_is_gone_is_found() -> None:
    text = "`python -m bench.gone`, 5f34ab12's `python -m bench.a`, `python -m bench.step [--gone]`"
    assert [unknown(*each) for each in commands_of_today(text)] == [["bench.gone"], ["--gone"]]


def test_tests_that_the_page_of_figures_names_are_there() -> None:
    named = set(_TESTS.findall(FIGURES.read_text()))
    assert len(named) > 3
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_page_of_figures_begins_with_what_can_be_run() -> None:
    first = FIGURES.read_text().split("\n# ")[0]
    assert len(commands_of_today(first)) == len(_COMMAND.findall(first)) > 8
