"""What a search asks, as requests to the batcher, and their answers as what it is told.

A probe is a request for one token of an output that goes on; the prefix cache has all of it but
the last block. A closing takes the output's last token once more, for certain: the shard says then
whether the constraint is kept.
"""

from collections.abc import Iterable
from dataclasses import replace

from proto.contract import FinishReason, LogprobParams, SamplingParams
from router.engine.beam_search.types import Ask, Close, Closed, Dead, Hole, Probe, Probed, Told
from router.request.errors import ConstraintRefused, GenerationFailed
from router.request.events import Event, Failed, Finished, TokenGenerated
from router.request.request import GenerateRequest

# More than any model's scores differ by, among tokens that it thinks of at all.
_CERTAIN = 100.0
# Who asks for alternatives is given no runs of forced tokens: those are spelled in one way, while a
# beam may have taken any.
_AS_PROBED = LogprobParams(num_top_tokens=1)
_BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)


def going_on(request: GenerateRequest, output_ids: tuple[int, ...]) -> GenerateRequest:
    """The request behind so much of its output. It is no client's, so nobody traces it."""
    constraint = request.constraint
    if constraint is not None and output_ids:
        # The first step had what the check left of the time; nobody waits for these to be accepted.
        constraint = replace(constraint, prepare_by_s=None)
    return replace(request, output_ids=output_ids, constraint=constraint, trace=None)


def made_before(ask: Ask) -> tuple[int, ...]:
    """The output behind which the sequence for an ask goes on."""
    output_ids = ask.beam.output_ids
    return output_ids if isinstance(ask, Probe) else output_ids[:-1]


def request_of(ask: Ask, hole: Hole) -> GenerateRequest:
    """One sequence for one ask."""
    request = going_on(hole.request, made_before(ask))
    if isinstance(ask, Probe):
        return request if ask.num_tops is None else _with_tops(request, ask.num_tops)
    sampling = SamplingParams(logit_bias={ask.beam.output_ids[-1]: _CERTAIN})
    return replace(request, sampling=sampling, logprobs=_AS_PROBED)


def _with_tops(request: GenerateRequest, num_tops: int) -> GenerateRequest:
    return replace(request, logprobs=replace(request.logprobs, num_top_tokens=num_tops))


def told_of(
    ask: Ask, events: Iterable[Event], end: Finished | Failed, end_token_ids: frozenset[int]
) -> Told:
    """What a sequence's events mean. Raises the RouterError of one that failed."""
    if isinstance(end, Failed):
        if isinstance(end.error, ConstraintRefused):
            return Dead(end.error)
        raise end.error
    if isinstance(ask, Close):
        return Closed(end.text_before + end.text, end.constraint_satisfied is not False)
    for event in events:
        if isinstance(event, TokenGenerated):
            return _probed(event, end, end_token_ids)
    raise GenerationFailed(f"a step of a beam brought no token ({end.reason.value})")


def _probed(event: TokenGenerated, end: Finished, end_token_ids: frozenset[int]) -> Probed:
    own = event.token
    tokens = {each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None}
    tokens.setdefault(own.token_id, own.logprob or 0.0)
    is_end = end.reason in _BY_TOKEN and own.hidden
    ranked = sorted(tokens.items(), key=lambda pair: -pair[1])
    return Probed(tuple(ranked), end_token_ids | ({own.token_id} if is_end else frozenset()))
