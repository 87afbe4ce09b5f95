"""What a worker makes of a job, in this process."""

import json

import pytest

from constraints.compiler import Compiler
from constraints.errors import TooComplex
from constraints.results import CheckResult
from constraints.spec import ConstraintSpec, Kind, StopRule
from constraints.worker.jobs import Answer, Check
from constraints.worker.work import Work
from native.cpu_yield import CpuYield
from tests.constraints.walks import demo_vocabulary

MAX_LEN = 200


@pytest.fixture(scope="module")
def work() -> Work:
    vocabulary = demo_vocabulary()
    return Work(vocabulary, Compiler(vocabulary), 2.0, 1 << 30, CpuYield())


def checked(work: Work, kind: Kind, text: str) -> Answer:
    return work.answer(Check(ConstraintSpec(kind, text), StopRule(), MAX_LEN))


def test_a_shard_is_told_the_grammar_and_the_text_that_was_found(work: Work) -> None:
    passed = checked(work, Kind.CHOICE, '["zebra", "cat"]')
    assert isinstance(passed, CheckResult)
    assert passed.translation is not None
    tokens = demo_vocabulary().tokens
    assert b"".join(tokens[i] for i in passed.translation.completion or ()) in (b"zebra", b"cat")


def test_a_grammar_that_is_long_is_not_carried_around(work: Work) -> None:
    passed = checked(work, Kind.CHOICE, json.dumps([f"{i:0100}" for i in range(12_000)]))
    assert isinstance(passed, CheckResult)
    assert passed.translation is None


def test_what_compiles_and_cannot_be_followed_is_refused_before_there_is_an_output(
    work: Work,
) -> None:
    properties = {f"property number {i}": {"type": "integer"} for i in range(1000)}
    schema = json.dumps({"type": "object", "properties": properties})
    refusal = checked(work, Kind.JSON_SCHEMA, schema)
    assert isinstance(refusal, TooComplex)
    assert "cannot be followed" in str(refusal)
