"""How outputs of a beam search become requests, and how their answers and texts are read."""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace

from proto.contract import FinishReason, LogprobParams, SamplingParams
from router.engine.beam_search.types import (
    Ask,
    AskResult,
    CheckHole,
    DeadEnd,
    EndedHole,
    Hole,
    NextTokens,
    ProbeTokens,
)
from router.request.errors import ConstraintRefused, GenerationFailed
from router.request.events import Event, Failed, Finished, TokenGenerated
from router.request.request import GenerateRequest
from router.text.output_text import OutputText
from router.text.tokenizer import Tokenizer

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
    return output_ids if isinstance(ask, ProbeTokens) else output_ids[:-1]


def request_of(ask: Ask, hole: Hole) -> GenerateRequest:
    """One sequence for one ask."""
    request = going_on(hole.request, made_before(ask))
    if isinstance(ask, ProbeTokens):
        return request
    sampling = SamplingParams(logit_bias={ask.beam.output_ids[-1]: _CERTAIN})
    return replace(request, sampling=sampling, logprobs=_AS_PROBED)


def result_of(
    ask: Ask, events: Iterable[Event], end: Finished | Failed, end_token_ids: frozenset[int]
) -> AskResult:
    """What a sequence's events mean. Raises the RouterError of one that failed."""
    if isinstance(end, Failed):
        if isinstance(end.error, ConstraintRefused):
            return DeadEnd(end.error)
        raise end.error
    if isinstance(ask, CheckHole):
        return EndedHole(end.text_before + end.text, end.constraint_satisfied is not False)
    for event in events:
        if isinstance(event, TokenGenerated):
            return _probed(event, end, end_token_ids)
    raise GenerationFailed(f"a step of a beam brought no token ({end.reason.value})")


def _probed(event: TokenGenerated, end: Finished, end_token_ids: frozenset[int]) -> NextTokens:
    own = event.token
    tokens = {each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None}
    tokens.setdefault(own.token_id, own.logprob or 0.0)
    is_end = end.reason in _BY_TOKEN and own.hidden
    ranked = sorted(tokens.items(), key=lambda pair: -pair[1])
    return NextTokens(tuple(ranked), end_token_ids | ({own.token_id} if is_end else frozenset()))


_KEPT_PER_BEAM = 4


class OutputTexts:
    """Reads outputs of a group's holes. Owner of what was read of the last `num_kept`.

    What is remembered no more is read from its first token.
    """

    def __init__(self, tokenizer: Tokenizer, num_kept: int) -> None:
        self._tokenizer = tokenizer
        self._most = num_kept
        # By hole and output; least recently used first. Nobody outside grows one of these.
        self._read: OrderedDict[tuple[Hole, tuple[int, ...]], OutputText] = OrderedDict()

    def shown(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """What a client may see of an output that goes on."""
        return self._at(hole, output_ids).text_before

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The text of an output that ends there."""
        return "".join(self._at(hole, output_ids).standing())

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether the text itself ends it, by a stop string."""
        if not _has_stops(hole.request):
            return False
        return self._at(hole, output_ids).matched is not None

    def behind(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        """The text of a sequence that goes on behind an output: the caller's own."""
        return self._at(hole, output_ids).fork()

    def _at(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        key = (hole, output_ids)
        text = self._read.get(key)
        if text is not None:
            self._read.move_to_end(key)
            return text
        before = self._read.get((hole, output_ids[:-1])) if output_ids else None
        if before is None:
            text = OutputText(going_on(hole.request, output_ids), self._tokenizer)
        else:
            text = before.grown(output_ids[-1])
        self._read[key] = text
        if len(self._read) > self._most:
            self._read.popitem(last=False)
        return text


def num_kept_of_beams(width: int) -> int:
    """Those of a step, those of the step before it, and those that end in it."""
    return _KEPT_PER_BEAM * width


def _has_stops(request: GenerateRequest) -> bool:
    constraint = request.constraint
    dropped = () if constraint is None else constraint.dropped_phrases
    return bool(request.stop.stop_strings or dropped)
