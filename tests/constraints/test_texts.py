"""Which texts are of a constraint and which are not, of every kind that a grammar follows.

A row of texts/KIND.jsonl has what is asked, with the options `how`; texts that are `right`, and
others that are `wrong`. Of schemas `misspelt` ones are instances that masks write otherwise;
`noted` is what is not enforced, `closing` what is judged where a value ends. Where `judged` is
false, the judge of finished texts does not know what masks keep.
"""

import json
import re

import pytest

from constraints.grammars.watching import WatchedLanguage
from constraints.schema.validation import violations
from tests.constraints.cases import Json
from tests.constraints.grammars.rig import accepts, of_row, rows


@pytest.mark.parametrize(("kind", "row"), rows("texts"))
def test_right_texts_are_taken_and_others_are_not(kind: str, row: Json) -> None:
    language = of_row(kind, row)
    right, wrong, misspelt = (row.get(name, []) for name in ("right", "wrong", "misspelt"))
    assert [each for each in (*right, *wrong, *misspelt) if accepts(language, each)] == right
    if kind == "json":
        assert list(language.not_enforced) == row.get("noted", [])
        closing = language.checked_at_close if isinstance(language, WatchedLanguage) else ()
        assert list(closing) == row.get("closing", [])
    if kind == "json" and row.get("judged", True):
        schema = json.dumps(row["schema"])
        assert [each for each in (*right, *misspelt) if violations(schema, each)] == []
        assert [each for each in wrong if not violations(schema, each)] == []
    if kind == "regex":
        assert [each for each in (*right, *wrong) if re.fullmatch(row["text"], each)] == right
