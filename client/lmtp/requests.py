"""The frames that a client of LMTP sends, as text: `TYPE JSON`."""

import json
from collections.abc import Mapping

from client.calls import (
    BeamHole,
    BeamsCall,
    BeamState,
    Constraint,
    GenerateCall,
    Message,
    Prompt,
    ScoreCall,
)
from client.errors import InvalidRequest
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
    numbers = {name: getattr(call.sampling, name) for name in SAMPLING_RULES}
    fields: dict[str, object] = {
        "stream_id": stream_id,
        **_prompt_fields(call.prompt),
        **numbers,
        **_penalty_fields(call.sampling),
        "max_tokens": call.max_tokens,
        "stop": list(call.stop) or None,
        "include_stop": None if call.keeps_stop else False,
        "top_logprobs": call.top_logprobs or None,
        "output": list(call.output) or None,
        "timeout_s": call.timeout_s,
        "model": call.model,
        "constraint": _constraint_fields(call.constraint),
        "include_reasoning": call.separates_thought or None,
    }
    return _frame("GENERATE", fields)


def beams_frame(call: BeamsCall, stream_id: int) -> str:
    """The live beams of one search."""
    fields = {
        "stream_id": stream_id,
        "width": call.width,
        "holes": [_hole_fields(hole) for hole in call.holes],
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
        return {"messages": [_turn_fields(turn) for turn in turns]}
    return {"prompt": list(prompt)}


def _turn_fields(turn: Message) -> dict[str, object]:
    fields: dict[str, object] = {"role": turn.role, "content": content_of(turn)}
    return fields | ({"reasoning_content": turn.thought} if turn.thought else {})


def content_of(turn: Message) -> str | list[dict[str, object]]:
    """As OpenAI's clients send it: a text, or parts where there are images."""
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


def _constraint_fields(constraint: Constraint | None) -> dict[str, object] | None:
    return None if constraint is None else {"type": constraint.type, "value": constraint.value}


def _hole_fields(hole: BeamHole) -> dict[str, object]:
    return _without_none(
        {
            **_prompt_fields(hole.prompt),
            "max_tokens": hole.max_tokens,
            "constraint": _constraint_fields(hole.constraint),
            "stop": list(hole.stop) or None,
            "include_stop": None if hole.keeps_stop else False,
            "is_last": hole.is_last or None,
        }
    )


def _beam_fields(beam: BeamState) -> dict[str, object]:
    return {
        "hole": beam.hole,
        "output": list(beam.output),
        "logprob": beam.logprob,
        "num_tokens": beam.num_tokens,
        "output_logprob": beam.output_logprob,
    }
