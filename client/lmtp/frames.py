"""Frames of LMTP, version 2: what a client sends as text, and what comes back as values.

A frame is `TYPE JSON`. It knows no socket and no stream's state.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from client.beams import BeamsAnswer, BeamsCall, BeamsReport
from client.errors import InvalidRequest, TandemError
from client.lmtp.beam_fields import beams_fields, read_answer, read_report
from client.lmtp.faults import read_fault
from client.lmtp.fields import (
    constraint_field,
    given,
    logprob_of,
    penalty_fields,
    prompt_fields,
    typed,
    usage_of,
)
from client.words import (
    SAMPLING_RULES,
    GenerateCall,
    Sampling,
    ScoreCall,
    Scored,
    Scores,
    ServerNotice,
    Standing,
    TokenMade,
    Usage,
)

VERSION = 2


@dataclass(frozen=True, slots=True)
class Greeting:
    """What the server says of itself when it is greeted; `facts` is all of it.

    `max_message_len` is in bytes, `max_streams` those of one socket. `end_token_ids` end outputs.
    """

    server: str
    models: tuple[str, ...]
    features: frozenset[str]
    max_message_len: int | None
    max_streams: int | None
    end_token_ids: frozenset[int] = frozenset()
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the server says of one model. `end_token_ids` end its outputs."""

    end_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A stream that ended well. `text`: all that it showed, also behind its tokens' pieces."""

    finish_reason: str
    text: str
    usage: Usage
    stop_string: str | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    seed: int | None = None
    standing: Standing = field(default_factory=Standing)


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that came to a bad end."""

    error: TandemError


Part: TypeAlias = (
    TokenMade | Ended | Scores | Greeting | ModelFacts | BeamsReport | BeamsAnswer | Failed
)


class BadFrame(Exception):
    """A frame that is none; the text says what is wrong with it."""


def hello_frame(stream_id: int) -> str:
    """Asks for version 2."""
    return _frame("HELLO", {"stream_id": stream_id, "version": VERSION})


def cancel_frame(stream_id: int) -> str:
    """Ends a stream of ours."""
    return _frame("CANCEL", {"stream_id": stream_id})


def model_frame(name: str | None, stream_id: int) -> str:
    """Asks for the facts of a model."""
    data = {} if name is None else {"model": name}
    return _frame("MODEL_INFO", {"stream_id": stream_id, "data": data, **data})


def generate_frame(call: GenerateCall, stream_id: int) -> str:
    """What is None or empty is not sent: the server has its own neutral values.

    Raises InvalidRequest for what JSON cannot say, as `score_frame` does.
    """
    fields: dict[str, object] = {
        "stream_id": stream_id,
        **prompt_fields(call.prompt),
        **_sampling_fields(call.sampling),
        "max_tokens": call.max_tokens,
        "stop": list(call.stop) or None,
        "include_stop": None if call.keeps_stop else False,
        "top_logprobs": call.top_logprobs or None,
        "output": list(call.output) or None,
        "num_steps": call.num_steps,
        "timeout_s": call.timeout_s,
        "model": call.model,
        "constraint": constraint_field(call.constraint),
    }
    return _frame("GENERATE", fields)


def beams_frame(call: BeamsCall, stream_id: int) -> str:
    """The live beams of one search."""
    return _frame("BEAMS", {"stream_id": stream_id, **beams_fields(call)})


def score_frame(call: ScoreCall, stream_id: int) -> str:
    """All values in one request."""
    values = [value if isinstance(value, str) else list(value) for value in call.values]
    fields = {"stream_id": stream_id, **prompt_fields(call.prompt), "scored": values}
    return _frame("SCORE", {**fields, "model": call.model})


def _frame(kind: str, fields: Mapping[str, object]) -> str:
    try:
        body = json.dumps(given(fields), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        field = next((name for name, value in fields.items() if not _is_json(value)), None)
        what = "a request" if field is None else f"`{field}`"
        raise InvalidRequest(f"{what} must be JSON. {error}", "validation", field) from None
    return f"{kind} {body}"


def _is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _sampling_fields(sampling: Sampling) -> dict[str, object]:
    numbers = {name: getattr(sampling, name) for name in SAMPLING_RULES}
    return {**numbers, **penalty_fields(sampling)}


def read_frame(text: str) -> Iterator[tuple[int | None, Part | ServerNotice]]:
    """The values in a server's frame, each with its stream. Unknown types hold none.

    Raises BadFrame.
    """
    kind, _, body = text.partition(" ")
    read = _READERS.get(kind)
    if read is None:
        return
    try:
        objects = json.loads(body)
        if not isinstance(objects, list):
            raise TypeError(f"a list was expected, not {type(objects).__name__}")
        for fields in objects:
            stream_id = fields["stream_id"]
            if stream_id is not None and not isinstance(stream_id, int):
                raise TypeError(f"stream_id {stream_id!r}")
            if "error" in fields:
                yield stream_id, Failed(read_fault(fields))
            elif (part := read(fields)) is not None:
                yield stream_id, part
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"{kind}: {type(error).__name__}: {error}") from None


def _token(fields: Mapping[str, Any]) -> TokenMade:
    top = fields.get("top_logprobs") or {}
    return TokenMade(
        token_id=typed(fields, "token", int),
        text=typed(fields, "text", str),
        logprob=logprob_of(fields["logprob"]),
        is_end=fields.get("is_end", False),
        top_logprobs=MappingProxyType({int(key): logprob_of(value) for key, value in top.items()}),
    )


def _ended(fields: Mapping[str, Any]) -> Ended | BeamsAnswer:
    if "beams" in fields:
        return read_answer(fields)
    return Ended(
        finish_reason=typed(fields, "finish_reason", str),
        text=typed(fields, "text", str),
        usage=usage_of(fields["usage"]),
        stop_string=fields.get("stop_string"),
        constraint_satisfied=fields.get("constraint_satisfied"),
        violation=fields.get("violation"),
        seed=fields.get("seed"),
        standing=_standing(fields.get("standing") or {}),
    )


def _standing(fields: Mapping[str, Any]) -> Standing:
    return Standing(text=fields.get("text", ""), tail=fields.get("tail", ""))


def _scores(fields: Mapping[str, Any]) -> Scores:
    return Scores(
        tuple(
            Scored(tuple(score["tokens"]), tuple(map(logprob_of, score["logprobs"])))
            for score in fields["scores"]
        ),
        usage_of(fields["usage"]),
    )


def _message(fields: Mapping[str, Any]) -> Greeting | ModelFacts | None:
    if "model_info" in fields:
        return ModelFacts(frozenset(fields["model_info"].get("eos_token_ids", ())))
    facts = fields.get("hello")
    if facts is None:
        return None
    return Greeting(
        server=str(facts.get("server", "")),
        models=tuple(facts.get("models", ())),
        features=frozenset(facts.get("features", ())),
        max_message_len=facts.get("max_message_len"),
        max_streams=facts.get("max_streams"),
        end_token_ids=frozenset(facts.get("eos_token_ids", ())),
        facts=MappingProxyType(facts),
    )


def _notice(fields: Mapping[str, Any]) -> ServerNotice:
    return ServerNotice(
        typed(fields, "state", str), fields.get("message") or "", fields["stream_id"]
    )


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Part | ServerNotice | None]] = {
    "TOKEN": _token,
    "DONE": _ended,
    "BEAMS": read_report,
    "SCORES": _scores,
    "MSG": _message,
    "SYS": _notice,
}
