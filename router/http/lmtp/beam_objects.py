"""What is told of beams, as JSON texts."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from router.engine.beam_search.best_words import BestOutcome, Ending, Node
from router.engine.beam_search.run import BeamUsage
from router.engine.beam_search.types import Beam, Outcome, Place
from router.http.lmtp.failures import error_fields
from router.http.lmtp.objects import as_json
from router.request.errors import RouterError

Shown = Callable[[Beam], str]


def usage_told(usage: BeamUsage) -> Mapping[str, int]:
    """As of a generation."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "cached_tokens": usage.num_cached_tokens,
        "output_tokens": usage.num_output_tokens,
    }


def report(stream_id: int, outcome: Outcome, shown: Shown) -> str:
    """Where a search stands: `shown` is what can be read of a beam."""
    beams = [{**_beam(place.beam), "text": shown(place.beam)} for place in outcome.beams]
    return as_json({"stream_id": stream_id, "beams": beams, "ended": _ended(outcome)})


def done(stream_id: int, outcome: Outcome, num_considered: int, usage: BeamUsage) -> str:
    """What came of it."""
    told: dict[str, object] = {
        "stream_id": stream_id,
        "finish_reason": outcome.reason.value,
        "beams": _places(outcome.beams),
        "ended": _ended(outcome),
        "dropped": [_dropped(place, error) for place, error in outcome.dropped],
    }
    if outcome.candidates is not None:
        told["candidates"] = _places(outcome.candidates)
        told["has_more"] = outcome.has_more
        told["num_considered"] = num_considered
    return as_json(told | {"usage": usage_told(usage)})


def best_report(stream_id: int, outcome: BestOutcome, shown: Shown) -> str:
    """Where a best-first search stands: the beams of the first nodes, and what has ended."""
    beams = [each.beam for each in outcome.left]
    told = [{**_beam(beam), "text": shown(beam)} for beam in beams]
    return as_json({"stream_id": stream_id, "beams": told, "ended": _places(outcome.ended)})


def best_done(stream_id: int, outcome: BestOutcome, usage: BeamUsage) -> str:
    """What came of it."""
    told: dict[str, object] = {
        "stream_id": stream_id,
        "finish_reason": outcome.reason.value,
        "beams": [_left(each) for each in outcome.left],
        "ended": _places(outcome.ended),
        "dropped": [_dropped(place, error) for place, error in outcome.dropped],
        "usage": usage_told(usage),
    }
    return as_json(told)


def _left(each: Node | Place) -> dict[str, object]:
    if isinstance(each, Place):
        return _place(each)
    told = _beam(each.beam)
    if isinstance(each, Ending):
        told["ended_by"] = "token" if each.by_token else "length"
    elif each.known:
        told |= {"known": each.known, "most": each.most}
    return told


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
    told = _beam(place.beam)
    if place.closed is not None:
        told |= {"is_ended": True, "text": place.closed.text}
    return told


def _ended(outcome: Outcome) -> Sequence[dict[str, object]]:
    return [{**_place(place), "score": score} for place, score in outcome.ended]


def _dropped(place: Place, error: RouterError | None) -> dict[str, object]:
    told = _place(place)
    if error is not None:
        told |= error_fields(error)
    elif place.closed is not None:
        told |= {"constraint_satisfied": False, "violation": place.closed.violation}
    return told
