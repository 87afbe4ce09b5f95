"""Reserves by how many tokens are left, from none until one more token changes nothing."""

from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from constraints.errors import TooComplex
from constraints.where.counter_grid import ALWAYS, NEVER, Reserves

# Layers that are kept whole, in bytes.
_MAX_BYTES = 128_000_000
# Layers that were put together from how many tokens each place needs.
_MAX_SHOWN = 4


class Layers:
    """All layers, made at once; used by one thread at a time.

    Where a reserve is weighed, layers are kept whole. Otherwise there is only ALWAYS and NEVER, and
    it is enough to know how many tokens each place and cell needs.
    """

    def __init__(
        self, first: Reserves, before: Callable[[Reserves], Reserves], *, is_weighed: bool
    ) -> None:
        """before: the layer of one more token, the same array where it is equal.

        Raises TooComplex where there is not room for all.
        """
        self._whole = [first]
        self._needed = np.where(first > NEVER, 0, np.iinfo(np.int32).max).astype(np.int32)
        self._shown: OrderedDict[int, Reserves] = OrderedDict()
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

    def at_hand(self, max_len: int | None) -> Reserves | None:
        """As `within`, where it is kept whole; asked by any thread."""
        if max_len is None or max_len >= self.num_layers - 1:
            return self._whole[-1]
        return self._whole[max_len] if self._is_weighed else None

    def within(self, max_len: int | None) -> Reserves:
        """Reserves of places from which at most `max_len` tokens complete the text."""
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


def can_keep(first: Reserves, num_layers: int, *, is_weighed: bool) -> bool:
    """Whether there is room for so many layers."""
    return first.nbytes * (num_layers if is_weighed else 3) <= _MAX_BYTES
