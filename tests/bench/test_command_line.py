"""Every program of bench/ says what it does when it is asked with --help."""

import ast
from pathlib import Path

import pytest

from bench.command_line import parser_of, progress

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = [
    path
    for path in sorted((ROOT / "bench").rglob("*.py"))
    if "parser_of(__doc__)" in path.read_text()
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_help_of_a_program_begins_with_its_command(path: Path) -> None:
    document = ast.get_docstring(ast.parse(path.read_text()), clean=False)
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    parser = parser_of(document)
    assert parser.prog == f"python -m {module}"
    assert (document or "").strip() in parser.format_help()


def test_an_option_is_listed_with_its_default() -> None:
    parser = parser_of("    python -m bench.x")
    parser.add_argument("--prompt-len", type=int, default=7)
    assert "prompt len (default: 7)" in parser.format_help()


def test_progress_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(progress(range(40), "trials")) == list(range(40))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[5] == "trials: 20 of 40"
