"""What is refused, of every kind of constraint: by which error, where, for which parts and why.

A row of refusals/KIND.jsonl has what is asked, as `text` or `schema`, with the options `how`; the
class of the `error`; and of what the error says as much as is asserted:
`position`, `pointer`, `parts`, words that are `said`. `lenient`: what is left out instead where
that is allowed.
"""

import json

import pytest

from constraints import errors
from constraints.regex.writing import translate
from constraints.spec import ConstraintSpec, Kind
from tests.constraints.cases import Json
from tests.constraints.grammars.rig import compiler, of_row, of_schema, rows


def ask(kind: str, row: Json) -> None:
    match kind:
        case "where":
            compiler().compile(ConstraintSpec(Kind.WHERE, row["text"]))
        case "regex":
            translate(row["text"])
        case _:
            of_row(kind, row)


@pytest.mark.parametrize(("kind", "row"), rows("refusals"))
def test_a_refusal_tells_its_place_its_parts_and_its_reason(kind: str, row: Json) -> None:
    with pytest.raises(getattr(errors, row["error"])) as refused:
        ask(kind, row)
    facts = vars(refused.value)
    said = row.get("said", [])
    assert [each for each in said if each not in str(refused.value)] == []
    assert {
        **facts,
        **{each: row[each] for each in ("position", "pointer") if each in row},
    } == facts
    if "parts" in row:
        parts = map(json.loads, facts["parts"]) if kind == "json" else facts["parts"]
        assert sorted(parts, key=str) == sorted(row["parts"], key=str)
    if row["error"] == "Malformed" and "position" in row:
        assert_caret(str(refused.value), row["text"], row["position"])
    if "lenient" in row:
        assert list(of_schema(row["schema"], lenient=True).not_enforced) == row["lenient"]


def assert_caret(message: str, text: str, position: int) -> None:
    lines = message.split("\n")
    at = next(number for number, line in enumerate(lines) if line.strip("^ ") == "" and "^" in line)
    column = lines[at].index("^")
    assert set(lines[at][column:]) == {"^"}
    if position < len(text) and text[position].isprintable():
        assert lines[at - 1][column] == text[position]
