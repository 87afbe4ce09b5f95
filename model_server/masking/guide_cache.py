"""The cache of guides at the beginning of an output, for requests with equal constraints.

A guide begins with a completion that fits the budget, and finding one can take longer than a step.
Requests with the same constraint and budget begin alike: the first one makes the guide, those that
come meanwhile wait for it, and later ones copy it.
"""

import threading
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass

from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, StopRule
from model_server.masking.constraint_cache import ConstraintCache
from proto.contract import OutputConstraint

_MAX_GUIDES = 128


@dataclass(frozen=True, slots=True)
class GuideKey:
    """All that a guide depends on before the first token."""

    constraint: OutputConstraint
    budget: Budget
    stops: StopRule
    takes_forced: bool


class GuideCache:
    """Owner of the cached guides, least recently used first; shared by threads."""

    def __init__(self, constraints: ConstraintCache) -> None:
        self._constraints = constraints
        self._lock = threading.Lock()
        self._futures: OrderedDict[GuideKey, Future[OutputConstraintState]] = OrderedDict()

    def guide(self, key: GuideKey) -> OutputConstraintState:
        """A copy of the guide. Raises ConstraintError; then nothing is cached."""
        with self._lock:
            future = self._futures.get(key)
            is_ours = future is None
            if future is None:
                future = self._futures[key] = Future()
                if len(self._futures) > _MAX_GUIDES:
                    self._futures.popitem(last=False)
            else:
                self._futures.move_to_end(key)
        if is_ours:
            self._make(key, future)
        return future.result().restart()

    def _make(self, key: GuideKey, future: "Future[OutputConstraintState]") -> None:
        constraint = key.constraint
        try:
            guide = OutputConstraintState(
                self._constraints.compile(constraint.spec, constraint.translation),
                self._constraints.vocabulary(),
                key.budget,
                key.stops,
                takes_forced=key.takes_forced,
            )
        except BaseException as error:
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)
            raise
        future.set_result(guide)
