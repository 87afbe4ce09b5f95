"""What was found out about constraints, remembered by key."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

F = TypeVar("F")


class ConstraintMemory(Generic[F]):
    """Findings by key, at most `max_len`; the least recently used leaves first."""

    def __init__(self, max_len: int) -> None:
        self._max_len = max_len
        self._findings: OrderedDict[Hashable, tuple[F, float | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._findings)

    def find(self, key: Hashable, now_s: float) -> F | None:
        """The finding; None: there is none."""
        found = self._findings.get(key)
        if found is None:
            return None
        finding, until_s = found
        if until_s is not None and until_s <= now_s:
            del self._findings[key]
            return None
        self._findings.move_to_end(key)
        return finding

    def keep(self, key: Hashable, finding: F, until_s: float | None = None) -> None:
        """Keeps a finding until a time, or as long as it is used often enough."""
        self._findings[key] = (finding, until_s)
        self._findings.move_to_end(key)
        while len(self._findings) > self._max_len:
            self._findings.popitem(last=False)
