"""The frames of LMTP: `TYPE JSON`. Those of a client as text, those of a server as values."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from client.calls import (
    BeamDropped,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
    GenerateCall,
    GeneratedToken,
    Message,
    Prompt,
    ScoreCall,
    Scored,
    Scores,
    ServerNotice,
    Usage,
)
from client.errors import (
    ConstraintRefused,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    ServerFailed,
    TandemError,
    Unauthorized,
)
from client.sampling import SAMPLING_RULES, Sampling

VERSION = 2


def hello_frame(stream_id: int) -> str:
    """Asks for version 2."""
    return _frame("HELLO", {"stream_id": stream_id, "version": VERSION})


def cancel_frame(stream_id: int) -> str:
    return _frame("CANCEL", {"stream_id": stream_id})


def generate_frame(call: GenerateCall, stream_id: int) -> str:
    """None and empty values are left out, so that the server's defaults hold.

    Raises InvalidRequest for values that JSON cannot express, as `score_frame` does.
    """
    fields: dict[str, object] = {
        "stream_id": stream_id,
        **_output_fields(call),
        **{name: getattr(call.sampling, name) for name in SAMPLING_RULES},
        **_penalty_fields(call.sampling),
        "top_logprobs": call.top_logprobs or None,
        "output": list(call.output) or None,
        "timeout_s": call.timeout_s,
        "model": call.model,
        "include_reasoning": call.separates_thought or None,
    }
    return _frame("GENERATE", fields)


def beams_frame(call: BeamsCall, stream_id: int) -> str:
    """The live beams of one search."""
    fields = {
        "stream_id": stream_id,
        "width": call.width,
        "holes": [
            _without_none({**_output_fields(hole.call), "is_last": hole.is_last or None})
            for hole in call.holes
        ],
        "beams": [_beam_fields(beam) for beam in call.beams],
        "length_penalty": call.length_penalty,
        "early_stopping": call.early_stopping,
        "max_len": call.max_len,
        "ended": list(call.ended) or None,
        "num_candidates": call.num_candidates,
        "report_s": call.report_s,
        "model": call.model,
        **_penalty_fields(call.sampling),
    }
    return _frame("BEAMS", fields)


def score_frame(call: ScoreCall, stream_id: int) -> str:
    """All values in one request."""
    values = [value if isinstance(value, str) else list(value) for value in call.values]
    fields = {"stream_id": stream_id, **_prompt_fields(call.prompt), "scored": values}
    return _frame("SCORE", {**fields, "model": call.model})


def _frame(kind: str, fields: Mapping[str, object]) -> str:
    present = _without_none(fields)
    try:
        body = json.dumps(present, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
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


def _without_none(fields: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _prompt_fields(prompt: Prompt) -> dict[str, object]:
    if isinstance(prompt, str):
        return {"text": prompt}
    turns = [part for part in prompt if isinstance(part, Message)]
    if turns:
        return {"messages": [turn_fields(turn) for turn in turns]}
    return {"prompt": list(prompt)}


def turn_fields(turn: Message) -> dict[str, object]:
    """As OpenAI's clients send it."""
    fields: dict[str, object] = {"role": turn.role, "content": _content_of(turn)}
    return fields | ({"reasoning_content": turn.thought} if turn.thought else {})


def _content_of(turn: Message) -> str | list[dict[str, object]]:
    """A text, or parts where there are images."""
    if not turn.images:
        return turn.content
    parts: list[dict[str, object]] = [
        {"type": "image_url", "image_url": {"url": url}} for url in turn.images
    ]
    if turn.content:
        parts.append({"type": "text", "text": turn.content})
    return parts


def _penalty_fields(sampling: Sampling) -> dict[str, object]:
    return {
        "repetition_penalty": sampling.repetition_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
    }


def _output_fields(call: GenerateCall) -> dict[str, object]:
    """Those of a stream and of a hole of beams."""
    kept = call.constraint
    return {
        **_prompt_fields(call.prompt),
        "max_tokens": call.max_tokens,
        "constraint": None if kept is None else {"type": kept.type, "value": kept.value},
        "stop": list(call.stop) or None,
        "include_stop": None if call.keeps_stop else False,
    }


def _beam_fields(beam: BeamState) -> dict[str, object]:
    return {
        "hole": beam.hole,
        "output": list(beam.output),
        "logprob": beam.logprob,
        "num_tokens": beam.num_tokens,
        "output_logprob": beam.output_logprob,
    }


T = TypeVar("T")

# How the server writes minus infinity, for readers that do not know it.
_LEAST_FLOAT = -sys.float_info.max
# Error types of requests that may be accepted later. `model_load_failed` is none of them: a model
# that cannot be loaded rarely loads the next time.
_BUSY = frozenset({"overloaded", "unhealthy", "draining", "too_many_streams", "model_loading"})
_REFUSALS: Mapping[str, type[InvalidRequest | ConstraintRefused | ModelNotFound | Unauthorized]] = {
    "constraint_error": ConstraintRefused,
    "model_not_found": ModelNotFound,
    "model_load_failed": ModelNotFound,
    "unauthorized": Unauthorized,
}
# Error types of accepted requests.
_FAILURES = frozenset({"generation", "incomplete_generation", "internal_error", "cancelled"})


@dataclass(frozen=True, slots=True)
class Greeting:
    """The server's reply to HELLO; `facts` are all of its fields.

    `max_message_len` is in bytes, `max_streams` the limit of one socket.
    """

    server: str
    models: tuple[str, ...]
    features: frozenset[str]
    max_message_len: int | None
    max_streams: int | None
    facts: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The end of a stream without an error.

    `text`: the whole text of the request's output; `thought`: what came before, if separated.
    """

    finish_reason: str
    text: str
    usage: Usage
    stop_string: str | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    seed: int | None = None
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a stream with an error."""

    error: TandemError


Part: TypeAlias = (
    GeneratedToken | StreamEnd | Scores | Greeting | BeamsReport | BeamsAnswer | Failed
)


class BadFrame(Exception):
    """A frame that is not LMTP; the text is the reason."""


def read_frame(text: str) -> Iterator[tuple[int | None, Part | ServerNotice]]:
    """The values in a server's frame, each with its stream. Unknown types have none.

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
                yield stream_id, Failed(_error(fields))
            elif (part := read(fields)) is not None:
                yield stream_id, part
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"{kind}: {type(error).__name__}: {error}") from None


# Readers of objects, which raise KeyError, TypeError or ValueError for wrong fields.


def _error(fields: Mapping[str, object]) -> TandemError:
    message = str(fields["error"])
    error_type = str(fields.get("error_type") or "")
    retry_after_s = fields.get("retry_after_s")
    is_retryable = bool(fields.get("retryable", False))
    if error_type in _BUSY:
        after_s = float(retry_after_s) if isinstance(retry_after_s, int | float) else None
        return Overloaded(message, error_type, after_s)
    kind = _REFUSALS.get(error_type)
    if kind is None and (is_retryable or error_type in _FAILURES or not error_type):
        return ServerFailed(message, error_type or "unknown", is_retryable=is_retryable)
    details = fields.get("details")
    name = fields.get("field")
    if isinstance(details, dict) and "reason" in details:
        # The error type of a malformed constraint is that of any field that breaks its rule.
        kind = ConstraintRefused
    return (kind or InvalidRequest)(
        message,
        error_type,
        None if name is None else str(name),
        MappingProxyType(details if isinstance(details, dict) else {}),
    )


def _token(fields: Mapping[str, Any]) -> GeneratedToken:
    top = fields.get("top_logprobs") or {}
    return GeneratedToken(
        token_id=_typed(fields, "token", int),
        text=_typed(fields, "text", str),
        logprob=_logprob(fields["logprob"]),
        is_end=fields.get("is_end", False),
        top_logprobs=MappingProxyType({int(key): _logprob(value) for key, value in top.items()}),
        thought=_thought(fields),
    )


def _done(fields: Mapping[str, Any]) -> StreamEnd | BeamsAnswer:
    if "beams" in fields:
        return _beams_answer(fields)
    return StreamEnd(
        finish_reason=_typed(fields, "finish_reason", str),
        text=_typed(fields, "text", str),
        usage=_usage(fields["usage"]),
        stop_string=fields.get("stop_string"),
        constraint_satisfied=fields.get("constraint_satisfied"),
        violation=fields.get("violation"),
        seed=fields.get("seed"),
        thought=_thought(fields) or "",
    )


def _beams_report(fields: Mapping[str, Any]) -> BeamsReport:
    return BeamsReport(beams=_beams(fields["beams"]), ended=_beams(fields["ended"]))


def _beams_answer(fields: Mapping[str, Any]) -> BeamsAnswer:
    candidates = fields.get("candidates")
    return BeamsAnswer(
        finish_reason=_typed(fields, "finish_reason", str),
        beams=_beams(fields["beams"]),
        candidates=None if candidates is None else _beams(candidates),
        has_more=bool(fields.get("has_more")),
        num_considered=fields.get("num_considered") or 0,
        ended=_beams(fields["ended"]),
        dropped=tuple(_dropped_beam(each) for each in fields["dropped"]),
        usage=_usage(fields["usage"]),
    )


def _beams(objects: list[Mapping[str, Any]]) -> tuple[BeamState, ...]:
    return tuple(_beam(each) for each in objects)


def _beam(fields: Mapping[str, Any]) -> BeamState:
    return BeamState(
        hole=_typed(fields, "hole", int),
        output=tuple(fields["output"]),
        logprob=_logprob(fields["logprob"]),
        num_tokens=_typed(fields, "num_tokens", int),
        output_logprob=_logprob(fields["output_logprob"]),
        text=fields.get("text") or "",
        is_ended=bool(fields.get("is_ended")),
    )


def _dropped_beam(fields: Mapping[str, Any]) -> BeamDropped:
    error = _error(fields) if "error" in fields else None
    return BeamDropped(_beam(fields), error, fields.get("violation"))


def _scores(fields: Mapping[str, Any]) -> Scores:
    values = tuple(
        Scored(tuple(score["tokens"]), tuple(map(_logprob, score["logprobs"])))
        for score in fields["scores"]
    )
    return Scores(values, _usage(fields["usage"]))


def _message(fields: Mapping[str, Any]) -> Greeting | None:
    facts = fields.get("hello")
    if facts is None:
        return None
    return Greeting(
        server=str(facts.get("server", "")),
        models=tuple(facts.get("models", ())),
        features=frozenset(facts.get("features", ())),
        max_message_len=facts.get("max_message_len"),
        max_streams=facts.get("max_streams"),
        facts=MappingProxyType(facts),
    )


def _notice(fields: Mapping[str, Any]) -> ServerNotice:
    state = _typed(fields, "state", str)
    return ServerNotice(state, fields.get("message") or "", fields["stream_id"])


def _usage(fields: Mapping[str, Any]) -> Usage:
    return Usage(
        num_prompt_tokens=_typed(fields, "prompt_tokens", int),
        num_cached_tokens=fields.get("cached_tokens") or 0,
        num_output_tokens=fields.get("output_tokens") or 0,
    )


def _thought(fields: Mapping[str, Any]) -> str | None:
    return _typed(fields, "reasoning", str) if "reasoning" in fields else None


def _logprob(value: float) -> float:
    return -math.inf if value <= _LEAST_FLOAT else float(value)


def _typed(fields: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = fields[name]
    if not isinstance(value, kind):
        raise TypeError(f"{name} {value!r}")
    return value


_READERS: Mapping[str, Callable[[Mapping[str, Any]], Part | ServerNotice | None]] = {
    "TOKEN": _token,
    "DONE": _done,
    "BEAMS": _beams_report,
    "SCORES": _scores,
    "MSG": _message,
    "SYS": _notice,
}
