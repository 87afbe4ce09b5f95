"""One output under a constraint: its guide, the mask of its next token, and why it failed.

    fill -> words -> a token is drawn -> accepts? -> advance -> forced tokens -> fill ...
                          ^--- no: words change ---'

It belongs to one thread at a time: to a hand of the crew while that makes its mask, otherwise to
the device's, which makes those that are quick. Whatever an engine raises, panics included, ends
this output alone.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from constraints.bitmask import Bitmask, clear_bits, set_bits
from constraints.errors import ConstraintError, IllegalToken
from constraints.guide import Guide

_log = logging.getLogger(__name__)

T = TypeVar("T")

TOO_SLOW = "its constraint takes too long to follow"
# How long an output may hold up the steps that it is in, or compute beside them when they have gone
# on without it: at first, and more with every token. Whoever needs more is ended.
_PATIENCE_NS = 500_000_000
_PATIENCE_PER_TOKEN_NS = 10_000_000
# Tokens that may be refused before the completion that is known to fit is followed.
_MAX_REFUSED = 4


@dataclass(frozen=True, slots=True)
class Advance:
    """What an accepted token brought.

    forced:       tokens that the constraint leaves no choice about; they are accepted as well
    is_over:      nothing but the end may follow
    is_satisfied: whether the text satisfies the constraint; None while it goes on
    """

    forced: tuple[int, ...] = ()
    is_over: bool = False
    is_satisfied: bool | None = None


class GuidedOutput:
    """Owner of a guide. Once it has failed, `error` says why and nothing else may be asked.

    open_guide:  compiles what is to be compiled, and replays the output so far
    num_words:   of a mask
    end_ids:     tokens that end the text; `ignored_ids` among them only if nothing else is left
    left_len:    tokens that may still be generated here; it may go on elsewhere
    """

    def __init__(
        self,
        request_id: int,
        open_guide: Callable[[], Guide],
        *,
        num_words: int,
        end_ids: Iterable[int],
        ignored_ids: Iterable[int],
        left_len: int,
    ) -> None:
        self.request_id = request_id
        self.words: Bitmask = np.zeros(num_words, dtype=np.int32)
        self.fill_ns = self.computed_ns = 0
        self._patience_ns = _PATIENCE_NS
        self.error: str | None = None
        self.is_refused = False
        self._open_guide = open_guide
        self._guide: Guide | None = None
        self._end_ids = frozenset(end_ids)
        self._ignored_ids = tuple(ignored_ids)
        self._left_len = left_len
        self._num_refused = 0

    def open(self) -> None:
        """On a hand: make the guide and its first mask. Raises whatever goes wrong.

        Output that was made before is refused where nobody could have drawn it.
        """
        try:
            self._guide = self._open_guide()
            self.fill()
            if not self.words.any():
                raise IllegalToken("no token that fits into what is left may follow")
        except IllegalToken as error:
            self.is_refused = True
            raise IllegalToken(f"the output made before cannot be gone on with: {error}") from error

    @property
    def is_quick(self) -> bool:
        """Whether `fill` takes microseconds now; asked once it has been opened."""
        return self._present_guide.is_quick

    def fill_here(self) -> None:
        """As `fill`, on the device's thread; an error ends this output alone."""
        self._ask(lambda _: self.fill())

    @property
    def is_equipped(self) -> bool:
        """Whether `fill` makes a mask and nothing else; asked once it has been opened."""
        return self._present_guide.is_equipped

    def fill(self) -> None:
        """Make the mask of the next token, and what judging it takes. Raises whatever goes wrong.

        Afterwards `fill_ns` tells how long it took, and `computed_ns` how much of it was computing.
        """
        began_ns, began_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        words = self.words
        self._present_guide.fill(words)
        self._present_guide.equip()
        if self._ignored_ids:
            before = words.copy()
            clear_bits(words, self._ignored_ids)
            if not words.any():
                words[:] = before
        self.fill_ns = time.perf_counter_ns() - began_ns
        self.computed_ns = time.thread_time_ns() - began_cpu_ns

    def accepts(self, token_id: int, words: Bitmask) -> bool:
        """Whether a drawn token may be appended; if not, it is cleared in `words`.

        After a few refusals, or the last token's, the completion that is known to fit is all that
        `words` leave, and none at all if that is refused as well or the guide fails.
        """
        is_fitting = self._ask(lambda guide: guide.check(token_id))
        if is_fitting:
            return True
        self._num_refused += 1
        if self.error is None and self._num_refused < _MAX_REFUSED:
            clear_bits(words, (token_id,))
            # Where only ends are left that were masked before they had to be, they have to be now.
            if words.any():
                return False
        words[:] = 0
        if self.error is None and self._num_refused > _MAX_REFUSED:
            self.error = "the completion of the constraint that was known to fit was refused"
        elif self.error is None:
            witness = self._ask(lambda guide: guide.witness_token())
            if self.error is None:
                set_bits(words, self._end_ids if witness is None else (witness,))
        return False

    def advance(self, token_id: int) -> Advance | None:
        """Accept a token that was drawn and checked; None: the guide failed."""
        self._num_refused = 0
        return self._ask(lambda guide: self._advance(guide, token_id))

    def held_up(self, held_ns: int) -> None:
        """A step was held up for so long by this output, or was spared so much computing.

        Too often, and it has failed.
        """
        self._patience_ns -= held_ns
        if self._patience_ns < 0 and self.error is None:
            self.error = TOO_SLOW

    def fail(self, error: BaseException) -> None:
        """End this output by what its guide raised."""
        if isinstance(error, ConstraintError):
            self.error = str(error)
            return
        _log.error("request %d: a guide broke", self.request_id, exc_info=error)
        self.error = f"the engine of its constraint broke: {type(error).__name__}: {error}"

    def _advance(self, guide: Guide, token_id: int) -> Advance:
        guide.advance(token_id)
        self._left_len -= 1
        forced: tuple[int, ...] = ()
        if token_id not in self._end_ids and self._left_len > 0 and not guide.is_over:
            forced = guide.take_forced()
            self._left_len -= len(forced)
        self._patience_ns += _PATIENCE_PER_TOKEN_NS * (1 + len(forced))
        is_over = guide.is_over
        ends = is_over or self._left_len <= 0 or token_id in self._end_ids
        return Advance(forced, is_over, guide.is_satisfied if ends else None)

    def _ask(self, question: Callable[[Guide], T]) -> T | None:
        """On the device's thread, which computes nothing else meanwhile."""
        began_ns = time.thread_time_ns()
        try:
            return question(self._present_guide)
        except BaseException as error:  # noqa: BLE001 - an engine's panic too: it is told
            self.fail(error)
            return None
        finally:
            self.held_up(time.thread_time_ns() - began_ns)

    @property
    def _present_guide(self) -> Guide:
        if self._guide is None:
            raise AssertionError("the guide is asked before it was opened")
        return self._guide
