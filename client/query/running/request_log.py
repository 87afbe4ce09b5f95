"""The requests of a run, in the order of their answers; and the file with all calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from client.calls import Usage
from client.query.running.results import Request
from client.query.running.to_json import fields_of, json_line, plain


@dataclass(frozen=True, slots=True)
class CallerTrace:
    """The trace of the calling program, in which a nested query's requests are recorded, too."""

    request_log: "RequestLog"
    trace: int


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
