"""Which texts are of a constraint and which are not, of every kind that a grammar follows.

A row of texts/KIND.jsonl has what is asked, with the options `how`; texts that are `right`, and
others that are `wrong`. Of schemas `misspelt` ones are instances that masks write otherwise;
`noted` is what is not enforced, `closing` what is judged where a value ends. The `judges` that
agree are those of finished texts and of the corpus, unless fewer are named: some know no formats,
other drafts or single escapes.
"""

import json
import random
import re

import numpy as np
import pytest

from constraints.grammars.watching import WatchedLanguage
from constraints.schema.validation import violations
from constraints.spec import Whitespace
from tests.constraints.cases import Json
from tests.constraints.corpus.judge import Judge, loads
from tests.constraints.grammars.rig import accepts, of_row, of_schema, rows, walk


@pytest.mark.parametrize(("kind", "row"), rows("texts"))
def test_right_texts_are_taken_and_others_are_not(kind: str, row: Json) -> None:
    language = of_row(kind, row)
    right, wrong, misspelt = (row.get(name, []) for name in ("right", "wrong", "misspelt"))
    assert [each for each in (*right, *wrong, *misspelt) if accepts(language, each)] == right
    if kind == "json":
        assert list(language.not_enforced) == row.get("noted", [])
        closing = language.checked_at_close if isinstance(language, WatchedLanguage) else ()
        assert list(closing) == row.get("closing", [])
        judges = row.get("judges", ["finished", "corpus"])
        instances = [*right, *misspelt]
        if "finished" in judges:
            assert [each for each in instances if violations(json.dumps(row["schema"]), each)] == []
            assert [each for each in wrong if not violations(json.dumps(row["schema"]), each)] == []
        if "corpus" in judges:
            is_instance = Judge(row["schema"]).is_instance
            assert [each for each in instances if not is_instance(loads(each))] == []
            assert [each for each in wrong if is_instance(loads(each))] == []
    if kind == "regex":
        assert [each for each in (*right, *wrong) if re.fullmatch(row["text"], each)] == right


@pytest.mark.parametrize("row", [row for kind, row in rows("texts") if "name" in row])
def test_what_masks_write_is_an_instance(row: Json) -> None:
    whitespace = random.Random(row["name"]).choice(list(Whitespace))
    language = of_schema(row["schema"], whitespace=whitespace, **row.get("how", {}))
    text = walk(language, np.random.default_rng(7), 40)
    knows = "corpus" in row.get("judges", ["corpus"])
    assert text is None or not knows or Judge(row["schema"]).is_instance(loads(text)), text
