"""The jobs and answers of workers, as JSON. Imports no engine, so clients need not load one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from constraints.errors import ConstraintError
from constraints.spec import (
    MAX_SENT_CHARS,
    CheckResult,
    ConstraintSpec,
    JudgeResult,
    StopRule,
    ThoughtRule,
    VerifyResult,
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


_T = TypeVar("_T")
Job = Check | Judge | Verify
Answer = CheckResult | JudgeResult | VerifyResult | ConstraintError | Bug


def job_to_json(job: Job) -> dict[str, Any]:
    return {type(job).__name__: _plain(job)}


def job_from_json(fields: Mapping[str, Any]) -> Job:
    """The job that `job_to_json` wrote."""
    job: Job = _from_fields((Check, Judge, Verify), fields)
    return job


def answer_to_json(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, ConstraintError):
        return {"error": error_to_json(answer)}
    return {type(answer).__name__: _plain(answer)}


def answer_from_json(fields: Mapping[str, Any]) -> Answer:
    """The answer that `answer_to_json` wrote.

    Raises AttributeError, LookupError, TypeError and ValueError for anything else.
    """
    if "error" in fields:
        return error_from_json(fields["error"])
    answer: Answer = _from_fields((CheckResult, JudgeResult, VerifyResult, Bug), fields)
    translation = answer.translation if isinstance(answer, CheckResult) else None
    if translation is not None and len(translation.grammar) > MAX_SENT_CHARS:
        raise ValueError(f"the grammar has {len(translation.grammar)} characters")
    return answer


def _from_fields(classes: tuple[Any, ...], fields: Mapping[str, Any]) -> Any:
    """The message of one of the classes, whose name is the field."""
    by_name = {each.__name__: each for each in classes if each.__name__ in fields}
    ((name, found),) = by_name.items()
    return _built(found, fields[name])


_IS_MESSAGE = "__dataclass_fields__"
# The fields of a dataclass, with their types.
_types_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def _plain(value: Any) -> Any:
    """A dataclass, and what is in it, as JSON; bytes as characters."""
    match value:
        case Enum():
            return value.value
        case bytes():
            return value.decode("latin-1")
        case tuple():
            return list(map(_plain, value))
        case _ if hasattr(value, _IS_MESSAGE):
            return {name: _plain(getattr(value, name)) for name in _types_of(type(value))}
    return value


def _built(kind: Any, value: Any) -> Any:
    """What `_plain` wrote of a value of this type. Raises TypeError for one of another."""
    options = get_args(kind)
    if get_origin(kind) is UnionType:
        (kind,) = (each for each in options if each is not NoneType)
        return None if value is None else _built(kind, value)
    if get_origin(kind) is tuple:
        return tuple(_built(options[0], each) for each in _checked(list, value))
    if kind is bytes:
        return _checked(str, value).encode("latin-1")
    if hasattr(kind, _IS_MESSAGE):
        types = _types_of(kind)
        return kind(**{name: _built(types[name], each) for name, each in value.items()})
    if issubclass(kind, Enum):
        return kind(value)
    return float(value) if kind is float else _checked(kind, value)


def _checked(kind: type[_T], value: Any) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def error_to_json(error: ConstraintError) -> dict[str, Any]:
    fields = {name: _readable(value) for name, value in vars(error).items()}
    return {"name": type(error).__name__, "message": _readable(str(error)), "fields": fields}


def _readable(value: Any) -> Any:
    """With lone surrogates, which JSON's escapes allow and UTF-8 does not, as escapes."""
    if isinstance(value, tuple):
        return list(map(_readable, value))
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def error_from_json(sent: Mapping[str, Any]) -> ConstraintError:
    """A new error from the output of `error_to_json`."""
    kinds = {each.__name__: each for each in ConstraintError.__subclasses__()}
    kind = kinds.get(sent["name"], ConstraintError)
    error = kind.__new__(kind, sent["message"])
    for name, value in sent["fields"].items():
        setattr(error, name, tuple(value) if isinstance(value, list) else value)
    return error
