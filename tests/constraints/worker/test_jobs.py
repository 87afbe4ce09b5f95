"""Jobs and answers arrive as they were sent; and what a worker makes of a job, in this process."""

import json
from typing import Any

import pytest

from constraints.compiler import Compiler
from constraints.errors import (
    ConstraintError,
    Contradiction,
    DoesNotFit,
    EngineFailed,
    Malformed,
    NotEnforced,
    TooComplex,
)
from constraints.spec import (
    MAX_SENT_CHARS,
    CheckResult,
    ConstraintSpec,
    Judgement,
    JudgeResult,
    Kind,
    SpellingNote,
    StopRule,
    ThoughtRule,
    Translation,
    VerifyResult,
    Whitespace,
)
from constraints.worker.__main__ import Work
from constraints.worker.jobs import (
    Answer,
    Bug,
    Check,
    Job,
    Judge,
    Verify,
    answer_from_json,
    answer_to_json,
    error_from_json,
    error_to_json,
    job_from_json,
    job_to_json,
)
from processes.zygote.frames import HEADER, frame
from tests.constraints.cases import demo_vocabulary

SPEC = ConstraintSpec(
    Kind.JSON_SCHEMA,
    '{"const": "é\\u0000"}',
    Whitespace.SPACED,
    lenient=True,
    is_part=True,
    any_key_order=True,
    strict=True,
)


@pytest.mark.parametrize(
    "job",
    [
        Check(SPEC, StopRule(("\n\n", "é"), kept=False, token_ids=(3, 5)), 77),
        Check(ConstraintSpec(Kind.WHERE, "len(X) < 3"), StopRule(), 1, may_truncate=True),
        Check(SPEC, StopRule(), 9, thought=ThoughtRule("<é>", "</é>", is_begun=False, max_len=0)),
        Judge(SPEC, ("", "é\n"), 9),
        Judge(SPEC, (), 9),
        Verify(SPEC, "é"),
    ],
)
def test_a_job_arrives_as_it_was_sent(job: Job) -> None:
    assert job_from_json(json.loads(json.dumps(job_to_json(job)))) == job


@pytest.mark.parametrize(
    "answer",
    [
        CheckResult(3, ("\n",), ("/a~1b",), 0.25, True),
        CheckResult(3, (), (), 0.25, True, Translation("start: é", ("/a",), (b"\xff", b"a"), (3,))),
        CheckResult(0, (), (), 0.25, True, Translation("start:", completion=())),
        JudgeResult(
            "x",
            1,
            (
                Judgement(True, None, (), 4, note=SpellingNote(1, "é")),
                Judgement(False, 2, ("'é'",), 1, "broke"),
            ),
        ),
        JudgeResult(None, None, (), ("\n",), ("/a",)),
        VerifyResult(("at /a: no",)),
        Bug("Traceback"),
    ],
)
def test_an_answer_arrives_as_it_was_sent(answer: Answer) -> None:
    assert answer_from_json(json.loads(json.dumps(answer_to_json(answer)))) == answer


@pytest.mark.parametrize(
    "wrong",
    [
        {"grammar": 3},
        {"grammar": "\ud800"},
        {"grammar": "x" * (MAX_SENT_CHARS + 1)},
        {"not_enforced": ["/\ud800"]},
        {"not_enforced": [1]},
        {"hints": ["\u0100"]},
        {"completion": [-1]},
        {"completion": [1 << 40]},
        {"completion": ["1"]},
    ],
)
def test_a_translation_that_nobody_could_be_sent_is_no_answer(wrong: dict[str, object]) -> None:
    told: dict[str, Any] = answer_to_json(
        CheckResult(3, (), (), 0.25, True, Translation("start:", ("/a",), (b"a",), (3,)))
    )
    told["CheckResult"]["translation"] |= wrong
    with pytest.raises((AttributeError, TypeError, ValueError)):
        answer_from_json(told)


@pytest.mark.parametrize(
    "error",
    [
        Malformed("here", 4),
        Malformed("somewhere"),
        Malformed("there", pointer="/a"),
        NotEnforced("not", "/a"),
        NotEnforced("not", position=4),
        Contradiction("no", ("a", "b")),
        DoesNotFit(9, 3),
        TooComplex("long"),
        EngineFailed("broke"),
        ConstraintError("else"),
    ],
)
def test_an_error_arrives_with_its_class_its_message_and_its_numbers(
    error: ConstraintError,
) -> None:
    arrived = error_from_json(json.loads(json.dumps(error_to_json(error))))
    assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))


def test_an_error_that_quotes_half_a_surrogate_pair_can_be_sent() -> None:
    for error in (
        Malformed("the name \ud800", 4, "/\ud800"),
        NotEnforced("the name \ud800", "/\ud800"),
        Contradiction("no", ("a\udc00",)),
    ):
        sent = frame(answer_to_json(error))
        told = answer_from_json(json.loads(sent[HEADER.size :]))
        assert isinstance(told, type(error))
        assert "\\ud" in str(vars(told)) + str(told)
        assert str(told).encode()


MAX_LEN = 200


@pytest.fixture(scope="module")
def work() -> Work:
    vocabulary = demo_vocabulary()
    return Work(vocabulary, Compiler(vocabulary), 1 << 30)


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
