"""A beam search's asks as requests, and the results and texts of their outputs."""

from collections import OrderedDict
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
from router.engine.stream import Stream
from router.request.errors import ConstraintRefused, GenerationFailed
from router.request.request import Failed, Finished, GenerateRequest, TokenGenerated
from router.text.output_text import OutputText
from router.text.tokenizer import Tokenizer

# Texts that are remembered for each beam: those of a step, of the step before, and of its ends.
KEPT_TEXTS_PER_BEAM = 4
# A bias above all differences between a model's scores.
_FORCING_BIAS = 100.0
# Requests with alternatives get no runs of forced tokens. These are spelled in one way; a beam may
# have taken any.
_WITH_ALTERNATIVES = LogprobParams(num_top_tokens=1)
_BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)


def _resumed(request: GenerateRequest, output_ids: tuple[int, ...]) -> GenerateRequest:
    """The request behind a part of its output. It belongs to no client, so it is not traced."""
    constraint = request.constraint
    if constraint is not None and output_ids:
        # The check's time is for the first step; later requests wait in no queue.
        constraint = replace(constraint, prepare_by_s=None)
    return replace(request, output_ids=output_ids, constraint=constraint, trace=None)


def output_before(ask: Ask) -> tuple[int, ...]:
    """The output behind which an ask's sequence starts."""
    output_ids = ask.beam.output_ids
    return output_ids if isinstance(ask, ProbeTokens) else output_ids[:-1]


def request_of(ask: Ask, hole: Hole) -> GenerateRequest:
    """The request of one ask."""
    request = _resumed(hole.request, output_before(ask))
    if isinstance(ask, ProbeTokens):
        return request
    sampling = SamplingParams(logit_bias={ask.beam.output_ids[-1]: _FORCING_BIAS})
    return replace(request, sampling=sampling, logprobs=_WITH_ALTERNATIVES)


def result_of(ask: Ask, stream: Stream, end_token_ids: frozenset[int]) -> AskResult:
    """The result of an ask from its stream, which has ended. Raises the error of a failure."""
    end = stream.end
    assert end is not None, "a group advances when its streams have ended"
    if isinstance(end, Failed):
        if isinstance(end.error, ConstraintRefused):
            return DeadEnd(end.error)
        raise end.error
    if isinstance(ask, CheckHole):
        return EndedHole(stream.text_before + end.text, end.constraint_satisfied is not False)
    for event in stream.taken():
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


class OutputTexts:
    """Reads outputs of a group's holes as texts, and remembers the last `num_kept` of them.

    A text that is not remembered is decoded from its first token.
    """

    def __init__(self, tokenizer: Tokenizer, num_kept: int) -> None:
        self._tokenizer = tokenizer
        self._num_kept = num_kept
        # By hole and output; least recently used first. No caller may change one of these.
        self._read: OrderedDict[tuple[Hole, tuple[int, ...]], OutputText] = OrderedDict()

    def shown(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The text of an output that goes on, without what is held back."""
        return self._at(hole, output_ids).text_before

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The whole text of an output that ends there."""
        return self._at(hole, output_ids).standing()

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether a stop string ends the output."""
        constraint = hole.request.constraint
        dropped_phrases = () if constraint is None else constraint.dropped_phrases
        if not (hole.request.stop.stop_strings or dropped_phrases):
            return False
        return self._at(hole, output_ids).matched is not None

    def behind(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        """A copy of the text, for a sequence that goes on behind the output."""
        return self._at(hole, output_ids).fork()

    def _at(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        key = (hole, output_ids)
        text = self._read.get(key)
        if text is not None:
            self._read.move_to_end(key)
            return text
        before = self._read.get((hole, output_ids[:-1])) if output_ids else None
        if before is None:
            text = OutputText(_resumed(hole.request, output_ids), self._tokenizer)
        else:
            text = before.grown(output_ids[-1])
        self._read[key] = text
        if len(self._read) > self._num_kept:
            self._read.popitem(last=False)
        return text
