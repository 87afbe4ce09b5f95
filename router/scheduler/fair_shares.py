"""What each API key was served, so that the one that got least comes first.

Virtual token counters (Sheng et al., "Fairness in serving large language models", OSDI 2024): a
key's counter grows by the tokens that are computed for it, divided by its weight. A key that had
nothing to do begins at the least counter of those that have: it saves nothing up, and owes nothing.
With one key, or none, arrival alone decides.

A key that was served far more within the last minutes than another one which came lately is
over-served: its prompts leave room in each step, for a step that is full of them would be what a
newcomer waits for.
"""

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from math import inf

from router.request.request import NO_WORK, ApiKey, Work
from router.scheduler.sequence import ScheduledChunk, Sequence

# A token that is sampled costs so much more than one of a prompt, which many are computed of at
# once; the paper's weights, and about those of price lists.
_SAMPLE_COST = 1
# How long a key that came is reckoned with.
_LATELY_S = 60.0
# What a key was served counts for less with time: times `_KEPT` every `_FORGET_S`. Who was served
# more than twice as much as the least is over-served.
_KEPT = 0.9
_FORGET_S = 10.0
_OVERSERVED_RATIO = 2.0
_NOBODY: frozenset[str] = frozenset()


class FairShares:
    """Owner of the counters of keys, by name. The scheduler's alone."""

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._num_live: dict[str, int] = {}
        self._came_s: dict[str, float] = {}
        # Of the last minutes, without what a key begins at.
        self._used: dict[str, float] = {}
        self._forgot_s = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether several keys have sequences."""
        return len(self._num_live) > 1

    def served(self, key: ApiKey) -> float:
        """A key's counter, once it came."""
        return self._served[key.name]

    def overserved(self, now_s: float) -> frozenset[str]:
        """The names of keys that were served far more than another one which came lately."""
        if len(self._came_s) < 2:
            return _NOBODY
        if now_s - self._forgot_s >= _FORGET_S:
            self._forgot_s = now_s
            self._used = {name: _KEPT * used for name, used in self._used.items()}
        lately = [name for name, came_s in self._came_s.items() if now_s - came_s < _LATELY_S]
        most = _OVERSERVED_RATIO * min((self._used[name] for name in lately), default=inf)
        return frozenset([name for name in self._num_live if self._used[name] > most])

    def comes_before(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether one that waits comes before the prompt of another key that is being computed."""
        key = waiting.request.key
        other = running.request.key
        return key.name != other.name and self.served(key) <= self.served(other)

    def arrive(self, key: ApiKey, now_s: float) -> None:
        """A sequence of the key begins to wait."""
        served = self._served.get(key.name, 0.0)
        if key.name not in self._num_live:
            least = min((self._served[name] for name in self._num_live), default=served)
            served = max(served, least)
        self._served[key.name] = served
        self._came_s[key.name] = now_s
        self._used.setdefault(key.name, 0.0)
        self._num_live[key.name] = self._num_live.get(key.name, 0) + 1

    def leave(self, key: ApiKey) -> None:
        """A sequence of the key has ended."""
        self._num_live[key.name] -= 1
        if not self._num_live[key.name]:
            del self._num_live[key.name]

    def charge(self, chunks: Iterable[ScheduledChunk]) -> None:
        """A step computes these."""
        if len(self._came_s) < 2:
            return
        for sequence, num_tokens, samples in chunks:
            key = sequence.request.key
            cost = (num_tokens + samples * _SAMPLE_COST) / key.weight
            self._served[key.name] += cost
            self._used[key.name] += cost

    def refund(self, sequence: Sequence, num_tokens: int) -> None:
        """So many of the tokens that it was charged for were not there to compute."""
        if num_tokens and len(self._came_s) >= 2:
            key = sequence.request.key
            self._served[key.name] -= num_tokens / key.weight
            self._used[key.name] -= num_tokens / key.weight

    def merge(self, queues: Mapping[str, Ordered[Sequence]], most: int) -> list[Sequence]:
        """At most so many heads of the keys' queues, as they would be served one by one.

        Each counts as served once it is taken, so that the keys alternate.
        """
        heads = [(self.served(queue[0].request.key), name, 0) for name, queue in queues.items()]
        heapq.heapify(heads)
        merged: list[Sequence] = []
        while heads and len(merged) < most:
            served, name, index = heapq.heappop(heads)
            queue = queues[name]
            sequence = queue[index]
            merged.append(sequence)
            if index + 1 < len(queue):
                cost = sequence.num_unscheduled / sequence.request.key.weight
                heapq.heappush(heads, (served + cost, name, index + 1))
        return merged


class RunningCounts:
    """How many sequences of each key run, while a step is planned that may exchange some."""

    def __init__(self, running: Iterable[Sequence]) -> None:
        self._running = list(running)
        self._num: dict[str, int] = {}
        for sequence in self._running:
            self.add(sequence)

    def add(self, sequence: Sequence) -> None:
        """It will run."""
        name = sequence.request.key.name
        self._num[name] = self._num.get(name, 0) + 1

    def victim_behind(self, sequence: Sequence) -> Sequence | None:
        """The youngest of the key that runs most for its weight, unless this one came after it."""
        most = max(map(self._ratio, self._running))
        behind = [each for each in self._running if each.order >= sequence.order]
        return next((each for each in reversed(behind) if self._ratio(each) == most), None)

    def _ratio(self, sequence: Sequence) -> float:
        key = sequence.request.key
        return self._num[key.name] / key.weight

    def take_victim(self, waiting: Sequence) -> Sequence | None:
        """The youngest sequence of the key that runs most for its weight.

        None where that key would then run less for its weight than the key of the one that waits:
        so an exchange is never undone, and a key's oldest sequence stays.
        """
        key = waiting.request.key
        wanted = (self._num.get(key.name, 0) + 1) / key.weight
        victim = None
        most = 0.0
        names = {key.name}
        for sequence in self._running:
            other = sequence.request.key
            ratio = (self._num[other.name] - 1) / other.weight
            is_oldest = other.name not in names
            names.add(other.name)
            if other.name != key.name and not is_oldest and ratio >= max(wanted, most):
                victim = sequence
                most = ratio
        if victim is not None:
            self._running.remove(victim)
            self._num[victim.request.key.name] -= 1
        return victim


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Sums over all sequences that have ended, good or bad."""

    num_sequences: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    work: Work = NO_WORK

    def plus(self, sequence: Sequence) -> "KeyUse":
        """With one that has ended."""
        return KeyUse(
            self.num_sequences + 1,
            self.num_prompt_tokens + sequence.prompt_len,
            self.num_cached_tokens + sequence.cached_len,
            self.num_generated_tokens + sequence.num_generated,
            self.work.plus(sequence.work()),
        )
