"""The results of a run of a query, and the log of its requests. Frozen.

Both have a form in JSON, for files and for `launcher query --json`.
"""

import json
import math
import re
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import IO, Generic, Self, TypeAlias, TypeVar

from client.calls import (
    Answer,
    BeamsAnswer,
    BeamsCall,
    Constraint,
    GenerateCall,
    Message,
    ScoreCall,
    Scores,
    Usage,
)
from client.errors import TandemError
from client.query.running.decoding import Choice, Span

ValueT_co = TypeVar("ValueT_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that was sent.

    kind:          generate, beams or score
    query, hole:   the program of the hole (a nested one for its own holes), and the hole; both
                   empty for calls by a program's Python code
    trace:         the number of its trace
    finish_reason: the server's; None for a score, and for a failed request, which has an `error`
    """

    kind: str
    query: str
    hole: str
    trace: int
    duration_s: float
    usage: Usage
    finish_reason: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[ValueT_co]):
    """One finished trace of a program.

    prompt:        the whole text with filled holes; turns of a chat begin with their tags
    spans:         the places of the holes' texts
    messages:      the turns of a chat; empty without roles
    variables:     the last values of the program's holes
    value:         the program's return value; None without a return statement
    distributions: of holes that were chosen from a support
    logprob:       of all texts of the model, natural logarithm
    usage:         tokens of all requests of this trace
    requests:      its requests; traces of one search share all of them
    """

    prompt: str
    spans: tuple[Span, ...]
    messages: tuple[Message, ...]
    variables: Mapping[str, object]
    value: ValueT_co
    distributions: Mapping[str, Choice]
    logprob: float
    usage: Usage
    requests: tuple[Request, ...]

    def __getitem__(self, name: str) -> object:
        """A hole's value by its name."""
        return self.variables[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a running program: the prompt of one trace, with the text of `hole` so far.

    `hole` None: the trace has ended. `constraint` and `stop` are those of the hole.
    """

    trace: int
    prompt: str
    spans: tuple[Span, ...]
    hole: str | None = None
    constraint: Constraint | None = None
    stop: tuple[str, ...] = ()


# Characters that JSON allows unescaped, but that some readers treat as line ends or cannot encode.
_ESCAPED = re.compile("[\x85\u2028\u2029\ud800-\udfff]")


def plain(value: object) -> object:
    """The value as dicts, lists, strings and numbers; other objects as their `str`.

    None for an infinity and for what is no number, which JSON does not have.
    """
    if is_dataclass(value) and not isinstance(value, type):
        return fields_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    return str(value)


def json_line(value: object) -> str:
    """JSON on one line for every reader, encodable in UTF-8."""
    text = json.dumps(value, ensure_ascii=False)
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def fields_of(value: object) -> dict[str, object]:
    """A dataclass's fields by name."""
    assert is_dataclass(value)
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


@dataclass(frozen=True, slots=True)
class CallerTrace:
    """The trace of the calling program, in which a nested query's requests are recorded, too."""

    request_log: "RequestLog"
    trace: int


Call: TypeAlias = GenerateCall | BeamsCall | ScoreCall
AnswerT = TypeVar("AnswerT", Answer, BeamsAnswer, Scores)
_KINDS: Mapping[type, str] = {GenerateCall: "generate", BeamsCall: "beams", ScoreCall: "score"}


@dataclass(frozen=True, slots=True)
class RequestSubject:
    """The trace, program and hole of a request, as of `Request`."""

    trace: int
    query: str = ""
    hole: str = ""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records requests when they have ended, in a log and perhaps a file."""

    request_log: "RequestLog"
    calls: "CallFile | None" = None

    async def recorded(
        self, subject: RequestSubject, call: Call, answering: Awaitable[AnswerT]
    ) -> AnswerT:
        began_s = time.perf_counter()
        try:
            answer = await answering
        except TandemError as error:
            self._record(subject, call, began_s, error, Usage(), None)
            raise
        reason = None if isinstance(answer, Scores) else answer.finish_reason
        self._record(subject, call, began_s, answer, answer.usage, reason)
        return answer

    def _record(
        self,
        subject: RequestSubject,
        call: Call,
        began_s: float,
        answer: object,
        usage: Usage,
        finish_reason: str | None,
    ) -> None:
        request = Request(
            kind=_KINDS[type(call)],
            query=subject.query,
            hole=subject.hole,
            trace=subject.trace,
            duration_s=time.perf_counter() - began_s,
            usage=usage,
            finish_reason=finish_reason,
            error=str(answer) if isinstance(answer, TandemError) else None,
        )
        self.request_log.record(subject.trace, request)
        if self.calls is not None:
            self.calls.write(request, call, answer)


class RequestLog:
    """Owner of one run's requests, which are recorded with the caller, too."""

    def __init__(self, caller: CallerTrace | None = None) -> None:
        self._caller = caller
        self._rows: list[tuple[int, Request]] = []

    def record(self, trace: int, request: Request) -> None:
        self._rows.append((trace, request))
        if self._caller is not None:
            self._caller.request_log.record(self._caller.trace, request)

    def of_trace(self, trace: int) -> tuple[Request, ...]:
        """The requests of one trace, with those of queries that it called."""
        return tuple(request for number, request in self._rows if number == trace)


def total(requests: Sequence[Request]) -> Usage:
    """The sum of their tokens."""
    usages = [request.usage for request in requests]
    return Usage(
        num_prompt_tokens=sum(usage.num_prompt_tokens for usage in usages),
        num_cached_tokens=sum(usage.num_cached_tokens for usage in usages),
        num_output_tokens=sum(usage.num_output_tokens for usage in usages),
    )


class CallFile:
    """Owner of an open file: one JSON object a line for each call of the model."""

    def __init__(self, path: str | Path) -> None:
        self._file: IO[str] = Path(path).open("w", encoding="utf-8")  # noqa: SIM115

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, request: Request, call: object, answer: object) -> None:
        line = {**fields_of(request), "call": plain(call), "answer": plain(answer)}
        self._file.write(json_line(line) + "\n")
        self._file.flush()
