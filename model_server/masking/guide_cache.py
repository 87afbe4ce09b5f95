"""MaskScheduler at the beginning of an output, kept so that equal requests need not make their own.

A guide begins with a completion that fits the budget, and finding one can take longer than a step.
Requests with the same constraint and budget begin alike: the first one makes the guide, whoever
comes meanwhile waits for it, and all later ones take a copy.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from constraints.guide import Guide
from constraints.spec import Budget, StopRule
from model_server.masking.constraint_cache import ConstraintCache
from proto.contract import OutputConstraint

_MAX_KEPT = 128


@dataclass(frozen=True, slots=True)
class Beginning:
    """All that a guide depends on before the first token."""

    constraint: OutputConstraint
    budget: Budget
    stops: StopRule
    takes_forced: bool


class GuideCache:
    """Owner of the guides that are kept, least recently used first; shared by threads."""

    def __init__(self, languages: ConstraintCache) -> None:
        self._languages = languages
        self._lock = threading.Lock()
        self._kept: OrderedDict[Beginning, Future[Guide]] = OrderedDict()

    def guide(self, beginning: Beginning) -> Guide:
        """A guide of one's own. Raises ConstraintError; then nothing is kept."""
        with self._lock:
            future = self._kept.get(beginning)
            is_ours = future is None
            if future is None:
                future = self._kept[beginning] = Future()
                if len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(beginning)
        if is_ours:
            self._make(beginning, future)
        return future.result().restart()

    def _make(self, beginning: Beginning, future: "Future[Guide]") -> None:
        constraint = beginning.constraint
        try:
            guide = Guide(
                self._languages.compile(constraint.spec, constraint.translation),
                self._languages.vocabulary(),
                beginning.budget,
                beginning.stops,
                takes_forced=beginning.takes_forced,
            )
        except BaseException as error:
            with self._lock:
                if self._kept.get(beginning) is future:
                    del self._kept[beginning]
            future.set_exception(error)
            raise
        future.set_result(guide)
