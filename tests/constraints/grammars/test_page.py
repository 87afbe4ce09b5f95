"""docs/constraints.md says what is true of schemas, patterns and grammars: its tables are tried."""

import re

import pytest

from constraints.schema.formats import KNOWN
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import ROOT
from tests.constraints.grammars.rig import accepts, compiler

PAGE = (ROOT / "docs" / "constraints.md").read_text()
HEADS = {
    "| schema | instances | no instances |": Kind.JSON_SCHEMA,
    "| pattern | matches | does not match |": Kind.REGEX,
    "| grammar | texts | other texts |": Kind.LARK,
    "| GBNF | texts | other texts |": Kind.GBNF,
}


def rows() -> list[tuple[Kind, str, list[str], list[str]]]:
    found = []
    for head, kind in HEADS.items():
        table = PAGE[PAGE.index(head) :].split("\n\n")[0]
        for line in table.splitlines()[2:]:
            written, held, refused = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            (text,) = quoted(written)
            found.append((kind, text, quoted(held), quoted(refused)))
    return found


def quoted(cell: str) -> list[str]:
    return [each.replace("\\|", "|").replace("⏎", "\n") for each in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize(("kind", "written", "held", "refused"), rows())
def test_the_tables_hold(kind: Kind, written: str, held: list[str], refused: list[str]) -> None:
    language = compiler().compile(ConstraintSpec(kind, written))
    assert [text for text in held if not accepts(language, text)] == []
    assert [text for text in refused if accepts(language, text)] == []
    assert held
    assert refused


def test_every_format_is_told() -> None:
    section = PAGE[PAGE.index("**Formats**") : PAGE.index("**Spelling.**")]
    assert set(quoted(section)) == set(KNOWN)
