"""The objects of frames as JSON: of tokens, errors, scores and beams."""

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import orjson

from router.engine.beam_search.run import BeamUsage
from router.engine.beam_search.types import Beam, Place, SearchOutcome
from router.http.errors import problem_of
from router.http.server.errors import Dialect, HttpError
from router.request.errors import ConstraintRefused, InvalidRequest, Refused, RouterError, RowFailed
from router.request.events import TokenGenerated

# What cannot come at all. Clients of version 1 read Python's JSON, others may not.
_IMPOSSIBLE = "-Infinity"
_LEAST = repr(-sys.float_info.max)


def number(value: float, *, strictly: bool) -> str:
    """A log-probability; `strictly` in numbers that any reader of JSON knows."""
    if math.isfinite(value):
        return repr(value)
    return _LEAST if strictly else _IMPOSSIBLE


def as_json(value: Mapping[str, object]) -> str:
    """Any other object."""
    return orjson.dumps(value).decode()


@dataclass(frozen=True, slots=True)
class TokenObject:
    """A token that waits for its finish reason: what is written before and behind it."""

    head: str
    rest: str

    @classmethod
    def of(
        cls, stream_id: int, event: TokenGenerated, *, version: int, has_tops: bool, is_end: bool
    ) -> "TokenObject":
        """A generated token, with its alternatives and, in version 2, what it shows."""
        token, strictly = event.token, version > 1
        logprob = token.logprob if token.logprob is not None else 0.0
        head = (
            f'{{"token":{token.token_id},"stream_id":{stream_id},'
            f'"logprob":{number(logprob, strictly=strictly)},"finish_reason":'
        )
        rest = ""
        if has_tops:
            tops = {
                each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None
            }
            tops.setdefault(token.token_id, logprob)
            entries = [f'"{key}":{number(tops[key], strictly=strictly)}' for key in tops]
            rest = f',"top_logprobs":{{{",".join(entries)}}}'
        if version > 1:
            shown = orjson.dumps(event.text).decode()
            rest += f',"text":{shown},"is_end":{"true" if is_end else "false"}'
        return cls(head, rest + "}")

    @classmethod
    def certain(cls, stream_id: int, token_id: int) -> "TokenObject":
        """A token that nothing else could have been."""
        return cls(
            f'{{"token":{token_id},"stream_id":{stream_id},"logprob":0.0,"finish_reason":',
            f',"top_logprobs":{{"{token_id}":0.0}}}}',
        )

    def ending(self, reason: str | None) -> str:
        """The object; `reason` None: the stream goes on."""
        return self.head + ("null" if reason is None else f'"{reason}"') + self.rest


def scored_token(stream_id: int, token_id: int, logprob: float, *, is_last: bool) -> str:
    """A token of a score, in the words of version 1."""
    reason = '"stop"' if is_last else "null"
    return (
        f'{{"token":{token_id},"stream_id":{stream_id},'
        f'"logprob":{number(logprob, strictly=False)},"finish_reason":{reason}}}'
    )


def error_type_of(error: RouterError | HttpError) -> str:
    """The kind, as logs and metrics have it too."""
    return problem_of(error, Dialect.TGI).error_type


def error_fields(error: RouterError | HttpError) -> dict[str, object]:
    """The fields of an error object, but for the stream's id."""
    fields: dict[str, object] = {"error": str(error), "error_type": error_type_of(error)}
    if isinstance(error, InvalidRequest | HttpError) and error.field is not None:
        fields["field"] = error.field
    if isinstance(error, ConstraintRefused):
        fields["details"] = {"reason": error.reason, **error.details}
    problem = problem_of(error, Dialect.TGI)
    if problem.retry_after_s is not None:
        fields["retry_after_s"] = problem.retry_after_s
    fields["retryable"] = _is_retryable(error)
    return fields


def _is_retryable(error: RouterError | HttpError) -> bool:
    """Not what is wrong with the request, nor a row that fails by what it is."""
    if isinstance(error, HttpError):
        return error.status >= 500
    return isinstance(error, Refused) or not isinstance(error, InvalidRequest | RowFailed)


Shown = Callable[[Beam], str]


def usage_fields(usage: BeamUsage) -> Mapping[str, int]:
    """As of a generation."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
    }


def report(stream_id: int, outcome: SearchOutcome, shown: Shown) -> str:
    """Where a search stands: `shown` is what can be read of a beam."""
    beams = [{**_beam(place.beam), "text": shown(place.beam)} for place in outcome.beams]
    return as_json({"stream_id": stream_id, "beams": beams, "ended": _ended(outcome)})


def done(stream_id: int, outcome: SearchOutcome, num_considered: int, usage: BeamUsage) -> str:
    """What came of it."""
    fields: dict[str, object] = {
        "stream_id": stream_id,
        "finish_reason": outcome.reason.value,
        "beams": _places(outcome.beams),
        "ended": _ended(outcome),
        "dropped": [_dropped(place, error) for place, error in outcome.dropped],
    }
    if outcome.candidates is not None:
        fields["candidates"] = _places(outcome.candidates)
        fields["has_more"] = outcome.has_more
        fields["num_considered"] = num_considered
    return as_json(fields | {"usage": usage_fields(usage)})


def _beam(beam: Beam) -> dict[str, object]:
    return {
        "hole": beam.hole,
        "output": beam.output_ids,
        "logprob": beam.logprob,
        "num_tokens": beam.num_tokens,
        "output_logprob": beam.output_logprob,
    }


def _places(places: Iterable[Place]) -> Sequence[dict[str, object]]:
    return [_place(place) for place in places]


def _place(place: Place) -> dict[str, object]:
    fields = _beam(place.beam)
    if place.closed is not None:
        fields |= {"is_ended": True, "text": place.closed.text}
    return fields


def _ended(outcome: SearchOutcome) -> Sequence[dict[str, object]]:
    return [{**_place(place), "score": score} for place, score in outcome.ended]


def _dropped(place: Place, error: RouterError | None) -> dict[str, object]:
    fields = _place(place)
    if error is not None:
        fields |= error_fields(error)
    elif place.closed is not None:
        fields |= {"constraint_satisfied": False, "violation": place.closed.violation}
    return fields
