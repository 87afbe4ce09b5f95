"""Programs as the paper and LMQL's users write them, and what each of them says and asks."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from client.query.program import DecoderClause
from client.query.reading.reader import read
from tests.client.query.reading.recorder import ran

PROGRAMS = Path(__file__).parent / "programs"


def cases() -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for path in sorted(PROGRAMS.glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    ]


def shown(clause: DecoderClause) -> str:
    arguments = [*map(repr, clause.arguments)]
    arguments += [f"{name}={value!r}" for name, value in clause.options.items()]
    return f"{clause.name}({', '.join(arguments)})"


@pytest.mark.parametrize("case", cases())
def test_a_program_says_and_asks_what_it_is_written_to(case: dict[str, Any]) -> None:
    program = read(case["program"], namespace=case.get("namespace"))
    record, returned = ran(program, answers=case.get("answers"))
    assert record == case["asks"]
    assert returned == case.get("returns")
    assert program.returns == ("returns" in case)
    assert (program.decoder and shown(program.decoder())) == case.get("decoder")
    assert (program.model and program.model().value) == case.get("model")


def test_the_corpus_is_large() -> None:
    assert len(cases()) >= 40
