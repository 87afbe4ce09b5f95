"""One output under a constraint: its guide, the mask of its next token, its error.

    fill -> words -> a token is sampled -> accepts? -> advance -> forced tokens -> fill ...
                            ^--- no: words change ---'

It belongs to one thread at a time: to a worker of the pool while that makes its mask, otherwise to
the device's thread, which makes quick masks. Whatever an engine raises, panics included, ends this
output alone.
"""

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from constraints.after_thought import OutputState
from constraints.bitmask import Bitmask, clear_bits, set_bits
from constraints.errors import ConstraintError, IllegalToken

_log = logging.getLogger(__name__)

T = TypeVar("T")

TOO_SLOW = "its constraint takes too long to follow"
# How long an output may delay its steps, or compute beside steps that went on without it: at first,
# and in addition for every token. An output that needs more is ended.
_ALLOWANCE_NS = 500_000_000
_ALLOWANCE_PER_TOKEN_NS = 10_000_000
# Refused tokens after which the completion that is known to fit is followed.
_MAX_REFUSED = 4


@dataclass(frozen=True, slots=True)
class Advance:
    """The consequences of an accepted token.

    forced:       tokens without an alternative under the constraint; they are accepted as well
    is_over:      nothing but the end may follow
    is_satisfied: whether the text satisfies the constraint; None while it goes on
    """

    forced: tuple[int, ...] = ()
    is_over: bool = False
    is_satisfied: bool | None = None


class GuidedOutput:
    """Owner of a guide. Once it has failed, `error` is the reason and nothing else may be called.

    `is_refused`: it is the constraint that failed: the output before breaks it, or it takes too
    long to follow.

    open_guide:  compiles the constraint, and replays the output so far
    num_words:   of a mask
    end_ids:     tokens that end the text; `ignored_ids` among them only if nothing else is left
    left_len:    tokens that may still be generated here; another call may continue
    """

    def __init__(
        self,
        request_id: int,
        open_guide: Callable[[], OutputState],
        *,
        num_words: int,
        end_ids: Iterable[int],
        ignored_ids: Iterable[int],
        left_len: int,
    ) -> None:
        self.request_id = request_id
        self.words: Bitmask = np.zeros(num_words, dtype=np.int32)
        self.fill_ns = self.computed_ns = 0
        self._allowance_ns = _ALLOWANCE_NS
        self.error: str | None = None
        self.is_refused = False
        self._open_guide = open_guide
        self._guide: OutputState | None = None
        self._end_ids = frozenset(end_ids)
        self._ignored_ids = tuple(ignored_ids)
        self._left_len = left_len
        self._num_refused = 0

    def open(self) -> None:
        """On a worker: make the guide and its first mask. Raises whatever goes wrong.

        Output generated before is refused where the constraint does not allow it.
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
        """Whether `fill` takes microseconds now; read after `open`."""
        return self._present_guide.is_quick

    def fill_here(self) -> None:
        """As `fill`, on the device's thread; an error ends this output alone."""
        self._ask(lambda _: self.fill())

    def fill(self) -> None:
        """Make the mask of the next token. Raises whatever goes wrong.

        Sets `fill_ns`, the time that it took, and `computed_ns`, the CPU time.
        """
        began_ns = time.perf_counter_ns()
        began_cpu_ns = time.thread_time_ns()
        words = self.words
        self._present_guide.fill(words)
        if self._ignored_ids:
            before = words.copy()
            clear_bits(words, self._ignored_ids)
            if not words.any():
                words[:] = before
        self.fill_ns = time.perf_counter_ns() - began_ns
        self.computed_ns = time.thread_time_ns() - began_cpu_ns

    def accepts(self, token_id: int, words: Bitmask) -> bool:
        """Whether a sampled token may be appended; if not, it is cleared in `words`.

        After a few refusals, or the last token's, the completion that is known to fit is all that
        `words` allow, and no token if that is refused as well or the guide fails.
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
            completion = self._ask(lambda guide: guide.completion_token())
            if self.error is None:
                set_bits(words, self._end_ids if completion is None else (completion,))
        return False

    def advance(self, token_id: int) -> Advance | None:
        """Accept a token that was sampled and checked; None: the guide failed."""
        self._num_refused = 0
        return self._ask(lambda guide: self._advance(guide, token_id))

    def charge(self, cost_ns: int) -> None:
        """Subtract time from the allowance: a delay of a step, or computing beside it.

        An output without any left has failed.
        """
        self._allowance_ns -= cost_ns
        if self._allowance_ns < 0 and self.error is None:
            self.refuse_as_slow()

    def refuse_as_slow(self) -> None:
        """End this output: its constraint takes more time than there is."""
        self.error = TOO_SLOW
        self.is_refused = True

    def fail(self, error: BaseException) -> None:
        """End this output by what its guide raised."""
        if isinstance(error, ConstraintError):
            self.error = str(error)
            return
        _log.error("request %d: a guide broke", self.request_id, exc_info=error)
        self.error = f"the engine of its constraint broke: {type(error).__name__}: {error}"

    def _advance(self, guide: OutputState, token_id: int) -> Advance:
        guide.advance(token_id)
        self._left_len -= 1
        forced: tuple[int, ...] = ()
        if token_id not in self._end_ids and self._left_len > 0 and not guide.is_over:
            forced = guide.take_forced()
            self._left_len -= len(forced)
        self._allowance_ns += _ALLOWANCE_PER_TOKEN_NS * (1 + len(forced))
        is_over = guide.is_over
        ends = is_over or self._left_len <= 0 or token_id in self._end_ids
        return Advance(forced, is_over, guide.is_satisfied if ends else None)

    def _ask(self, question: Callable[[OutputState], T]) -> T | None:
        """Call the guide on the device's thread, at the output's cost."""
        began_ns = time.thread_time_ns()
        try:
            return question(self._present_guide)
        except BaseException as error:  # noqa: BLE001 - an engine's panic too: `fail`
            self.fail(error)
            return None
        finally:
            self.charge(time.thread_time_ns() - began_ns)

    @property
    def _present_guide(self) -> OutputState:
        if self._guide is None:
            raise AssertionError("the guide is not open yet")
        return self._guide
