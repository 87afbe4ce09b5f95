"""The texts of outputs, made of their tokens as streams make them."""

from router.beam_search.requests import going_on
from router.beam_search.words import Hole
from router.output_text import OutputText
from router.request import GenerateRequest
from router.text.tokenizer import Tokenizer


class OutputTexts:
    """Reads outputs of a group's holes. It computes each anew: a text is as long as its output."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def shown(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """What a client may see of an output that goes on."""
        return self._read(hole, output_ids).text_before

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        """The text of an output that ends there."""
        read = self._read(hole, output_ids)
        return read.text_before + read.flush()

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        """Whether the text itself ends it, by a stop string."""
        if not _has_stops(hole.request):
            return False
        return self._read(hole, output_ids).matched is not None

    def _read(self, hole: Hole, output_ids: tuple[int, ...]) -> OutputText:
        return OutputText(going_on(hole.request, output_ids), self._tokenizer)


def _has_stops(request: GenerateRequest) -> bool:
    constraint = request.constraint
    dropped = () if constraint is None else constraint.dropped_phrases
    return bool(request.stop.stop_strings or dropped)
