"""The jobs and answers of workers, as JSON. Imports no engine, so clients need not load one."""

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from constraints.errors import (
    ConstraintError,
    Contradiction,
    DoesNotFit,
    EngineFailed,
    IllegalToken,
    Malformed,
    NotEnforced,
    TooComplex,
)
from constraints.results import CheckResult, Judgement, JudgeResult, SpellingNote, VerifyResult
from constraints.spec import (
    MAX_SENT_CHARS,
    ConstraintSpec,
    Kind,
    StopRule,
    ThoughtRule,
    Translation,
    Whitespace,
)


@dataclass(frozen=True, slots=True)
class Check:
    """Compile, and find an output of at most `max_len` tokens; of any length if `may_truncate`."""

    spec: ConstraintSpec
    stops: StopRule
    max_len: int
    may_truncate: bool = False
    thought: ThoughtRule | None = None


@dataclass(frozen=True, slots=True)
class Judge:
    """Compile, and judge whether each text satisfies the constraint."""

    spec: ConstraintSpec
    texts: tuple[str, ...]
    max_len: int


@dataclass(frozen=True, slots=True)
class Verify:
    """Validate a finished text against a JSON schema."""

    spec: ConstraintSpec
    text: str


@dataclass(frozen=True, slots=True)
class Bug:
    """A bug of the worker, not of the constraint; `trace`: for a log."""

    trace: str


Job = Check | Judge | Verify
Answer = CheckResult | JudgeResult | VerifyResult | ConstraintError | Bug


def job_to_json(job: Job) -> dict[str, Any]:
    spec = {
        "kind": job.spec.kind.value,
        "text": job.spec.text,
        "whitespace": job.spec.whitespace.value,
        "lenient": job.spec.lenient,
        "is_part": job.spec.is_part,
        "any_key_order": job.spec.any_key_order,
        "strict": job.spec.strict,
    }
    if isinstance(job, Verify):
        return {"spec": spec, "finished": job.text}
    fields: dict[str, Any] = {"spec": spec, "max_len": job.max_len}
    if isinstance(job, Check):
        stops = {"stops": list(job.stops.strings), "kept": job.stops.kept}
        thought = None if job.thought is None else asdict(job.thought)
        return (
            fields
            | stops
            | {"stop_token_ids": list(job.stops.token_ids), "may_truncate": job.may_truncate}
            | {"thought": thought}
        )
    return fields | {"texts": list(job.texts)}


def job_from_json(fields: Mapping[str, Any]) -> Job:
    """The job that `job_to_json` wrote."""
    spec = ConstraintSpec(
        Kind(fields["spec"]["kind"]),
        fields["spec"]["text"],
        Whitespace(fields["spec"]["whitespace"]),
        fields["spec"]["lenient"],
        fields["spec"]["is_part"],
        fields["spec"]["any_key_order"],
        fields["spec"]["strict"],
    )
    if "finished" in fields:
        return Verify(spec, fields["finished"])
    if "texts" in fields:
        return Judge(spec, tuple(fields["texts"]), fields["max_len"])
    stops = StopRule(tuple(fields["stops"]), fields["kept"], tuple(fields["stop_token_ids"]))
    thought = None if fields["thought"] is None else ThoughtRule(**fields["thought"])
    return Check(spec, stops, fields["max_len"], fields["may_truncate"], thought)


def answer_to_json(answer: Answer) -> dict[str, Any]:
    match answer:
        case CheckResult():
            return {
                "min_len": answer.min_len,
                "dropped": list(answer.dropped_phrases),
                "not_enforced": list(answer.not_enforced),
                "compile_s": answer.compile_s,
                "dead_ends": answer.has_dead_ends,
                "translation": _translation_to_json(answer.translation),
            }
        case JudgeResult():
            return {
                "shortest": answer.shortest,
                "min_len": answer.min_len,
                "judgements": [astuple(each) for each in answer.judgements],
                "dropped": list(answer.dropped_phrases),
                "not_enforced": list(answer.not_enforced),
                "checked_at_close": list(answer.checked_at_close),
            }
        case VerifyResult():
            return {"violations": list(answer.violations)}
        case Bug():
            return {"bug": answer.trace}
        case _:
            return {"error": error_to_json(answer)}


def answer_from_json(fields: Mapping[str, Any]) -> Answer:
    """The answer that `answer_to_json` wrote.

    Raises AttributeError, LookupError, TypeError and ValueError for anything else.
    """
    if "error" in fields:
        return error_from_json(fields["error"])
    if "bug" in fields:
        return Bug(fields["bug"])
    if "violations" in fields:
        return VerifyResult(tuple(fields["violations"]))
    if "judgements" in fields:
        judgements = tuple(
            Judgement(
                accepted,
                position,
                tuple(expected),
                num_legal,
                failure,
                None if note is None else SpellingNote(*note),
            )
            for accepted, position, expected, num_legal, failure, note in fields["judgements"]
        )
        return JudgeResult(
            fields["shortest"],
            fields["min_len"],
            judgements,
            dropped_phrases=tuple(fields["dropped"]),
            not_enforced=tuple(fields["not_enforced"]),
            checked_at_close=tuple(fields["checked_at_close"]),
        )
    return CheckResult(
        min_len=fields["min_len"],
        dropped_phrases=tuple(fields["dropped"]),
        not_enforced=tuple(fields["not_enforced"]),
        compile_s=fields["compile_s"],
        has_dead_ends=fields["dead_ends"],
        translation=_translation_from_json(fields["translation"]),
    )


def _translation_to_json(translation: Translation | None) -> dict[str, Any] | None:
    if translation is None:
        return None
    # Bytes as characters: JSON has no bytes.
    return asdict(translation) | {"hints": [hint.decode("latin-1") for hint in translation.hints]}


def _translation_from_json(fields: Mapping[str, Any] | None) -> Translation | None:
    if fields is None:
        return None
    if len(fields["grammar"]) > MAX_SENT_CHARS:
        raise ValueError(f"the grammar has {len(fields['grammar'])} characters")
    completion = fields["completion"]
    return Translation(
        fields["grammar"],
        tuple(fields["not_enforced"]),
        tuple(hint.encode("latin-1") for hint in fields["hints"]),
        fields["may_run_on"],
        None if completion is None else tuple(completion),
        fields["watch"],
    )


_PLAIN = (TooComplex, EngineFailed, IllegalToken)


def error_to_json(error: ConstraintError) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": type(error).__name__, "message": _readable(str(error))}
    match error:
        case Malformed() | NotEnforced():
            pointer = None if error.pointer is None else _readable(error.pointer)
            fields |= {"position": error.position, "pointer": pointer}
        case Contradiction():
            fields["parts"] = [_readable(part) for part in error.parts]
        case DoesNotFit():
            fields |= {"needed_len": error.needed_len, "max_len": error.max_len}
    return fields


def _readable(text: str) -> str:
    """With lone surrogates, which JSON's escapes allow and UTF-8 does not, as escapes."""
    return text.encode(errors="backslashreplace").decode()


def error_from_json(fields: Mapping[str, Any]) -> ConstraintError:
    """A new error from the output of `error_to_json`."""
    message: str = fields["message"]
    match fields["name"]:
        case "Malformed":
            return Malformed(message, fields["position"], fields["pointer"])
        case "NotEnforced":
            return NotEnforced(message, fields["pointer"], fields["position"])
        case "Contradiction":
            return Contradiction(message, tuple(fields["parts"]))
        case "DoesNotFit":
            return DoesNotFit(fields["needed_len"], fields["max_len"])
    for plain in _PLAIN:
        if fields["name"] == plain.__name__:
            return plain(message)
    return ConstraintError(message)
