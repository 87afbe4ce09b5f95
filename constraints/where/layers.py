"""Slacks by the number of tokens left: from none up to where one more changes nothing."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from constraints.errors import TooComplex
from constraints.where.counter_grid import ALWAYS, NEVER, Slacks

# The most bytes of layers that are stored whole.
_MAX_BYTES = 128_000_000
# The most cached layers that were rebuilt from the tokens that each place needs.
_MAX_SHOWN = 4


class Layers:
    """All layers, computed at once; used by one thread at a time.

    Where a counter is weighed, layers are stored whole. Otherwise slacks are ALWAYS or NEVER, and
    it is enough to store how many tokens each place and cell needs.
    """

    def __init__(
        self, first: Slacks, before: Callable[[Slacks], Slacks], *, is_weighed: bool
    ) -> None:
        """before: computes the layer of one more token; returns its argument if they are equal.

        Raises TooComplex where the layers take too much memory.
        """
        self._whole = [first]
        self._needed = np.where(first > NEVER, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._shown: OrderedDict[int, Slacks] = OrderedDict()
        self.num_layers = 1
        last = first
        while (following := before(last)) is not last:
            if is_weighed:
                self._whole.append(following)
                if len(self._whole) * first.nbytes > _MAX_BYTES:
                    raise TooComplex("completions of too many tokens to look at")
            else:
                self._needed[(following > NEVER) & (last == NEVER)] = self.num_layers
                self._whole = [following]
            last = following
            self.num_layers += 1
        self._is_weighed = is_weighed

    def at_hand(self, max_len: int | None) -> Slacks | None:
        """`within` if that layer is stored whole, else None; any thread may call it."""
        if max_len is None or max_len >= self.num_layers - 1:
            return self._whole[-1]
        return self._whole[max_len] if self._is_weighed else None

    def within(self, max_len: int | None) -> Slacks:
        """Slacks of places from which at most `max_len` tokens complete the text."""
        whole = self.at_hand(max_len)
        if whole is not None:
            return whole
        assert max_len is not None
        shown = self._shown.get(max_len)
        if shown is None:
            shown = np.where(self._needed <= max_len, ALWAYS, NEVER).astype(np.int32)
            self._shown[max_len] = shown
            if len(self._shown) > _MAX_SHOWN:
                self._shown.popitem(last=False)
        return shown


def can_keep(first: Slacks, num_layers: int, *, is_weighed: bool) -> bool:
    """Whether there is memory for so many layers."""
    return first.nbytes * (num_layers if is_weighed else 3) <= _MAX_BYTES
