"""The texts of outputs, made of their tokens as streams make them.

An output is read on from where it was read when it had a token less, so that a step costs no more
for long outputs than for short ones.
"""

from collections import OrderedDict

from router.engine.beam_search.requests import going_on
from router.engine.beam_search.types import Hole
from router.engine.output_text import OutputText
from router.request.request import GenerateRequest
from router.text.tokenizer import Tokenizer

_KEPT_PER_BEAM = 4
# What a search of many long outputs may take of memory: some kilobytes each. Beyond it the oldest
# ones are read anew, which takes a step's least part.
_MOST_KEPT = 2048


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


def num_kept_best_first(width: int, budget: int) -> int:
    """A best-first search may go on from any output that it has asked about, however old."""
    return min(budget, _MOST_KEPT) + num_kept_of_beams(width)


def _has_stops(request: GenerateRequest) -> bool:
    constraint = request.constraint
    dropped = () if constraint is None else constraint.dropped_phrases
    return bool(request.stop.stop_strings or dropped)
