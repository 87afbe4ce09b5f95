"""Groups of beams as the fields of frames, and their answers as values."""

from collections.abc import Mapping
from typing import Any

from client.beams import (
    BeamDropped,
    BeamHole,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
)
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


def beams_fields(call: BeamsCall) -> dict[str, object]:
    """All but the stream's id."""
    return {
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
        **penalty_fields(call.sampling),
    }


def _hole_fields(hole: BeamHole) -> dict[str, object]:
    return given(
        {
            **prompt_fields(hole.prompt),
            "max_tokens": hole.max_tokens,
            "constraint": constraint_field(hole.constraint),
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


def read_report(fields: Mapping[str, Any]) -> BeamsReport:
    """Raises KeyError, TypeError, as all readers of frames do."""
    return BeamsReport(beams=_beams(fields["beams"]), ended=_beams(fields["ended"]))


def read_answer(fields: Mapping[str, Any]) -> BeamsAnswer:
    candidates = fields.get("candidates")
    return BeamsAnswer(
        finish_reason=typed(fields, "finish_reason", str),
        beams=_beams(fields["beams"]),
        candidates=None if candidates is None else _beams(candidates),
        has_more=bool(fields.get("has_more")),
        num_considered=fields.get("num_considered") or 0,
        ended=_beams(fields["ended"]),
        dropped=tuple(_dropped(each) for each in fields["dropped"]),
        usage=usage_of(fields["usage"]),
    )


def _beams(beams: list[Mapping[str, Any]]) -> tuple[BeamState, ...]:
    return tuple(_beam(each) for each in beams)


def _beam(fields: Mapping[str, Any]) -> BeamState:
    return BeamState(
        hole=typed(fields, "hole", int),
        output=tuple(fields["output"]),
        logprob=logprob_of(fields["logprob"]),
        num_tokens=typed(fields, "num_tokens", int),
        output_logprob=logprob_of(fields["output_logprob"]),
        text=fields.get("text") or "",
        is_ended=bool(fields.get("is_ended")),
    )


def _dropped(fields: Mapping[str, Any]) -> BeamDropped:
    error = read_fault(fields) if "error" in fields else None
    return BeamDropped(_beam(fields), error, fields.get("violation"))
