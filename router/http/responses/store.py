"""Responses kept for a while, within bounds; long conversations cut at their beginning."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from sys import getsizeof

from router.http.conversation import Turn
from router.http.responses.items import Item

MAX_RESPONSES = 10_000
MAX_BYTES = 64 * 2**20
# What the objects around a text weigh, about.
_ITEM_BYTES = 500


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it was answered, and what its conversation grew by."""

    response: bytes
    given: tuple[Item, ...]
    answered: tuple[Item, ...]
    previous_id: str | None

    @property
    def items(self) -> tuple[Item, ...]:
        """All of its own."""
        return (*self.given, *self.answered)

    @property
    def num_bytes(self) -> int:
        """What remembering it costs, about."""
        texts = [text for item in self.items for text in item.texts]
        overhead = _ITEM_BYTES * (1 + len(self.items) + len(texts))
        # Not their UTF-8: one emoji lets each letter of a text take four bytes.
        return len(self.response) + sum(map(getsizeof, texts)) + overhead


class ResponseStore:
    """The least recently used are forgotten first, beyond `max_responses` or `max_bytes`.

    Owned by the routes of the Responses. An owner sees its own responses alone.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[bytes, str], Stored] = OrderedDict()
        # Of each item, the responses that hold it, oldest first.
        self._holders: dict[tuple[bytes, str], dict[str, None]] = {}
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def num_bytes(self) -> int:
        """What all that is remembered costs, about."""
        return self._num_bytes

    def keep(self, owner: bytes, response_id: str, stored: Stored) -> None:
        """Remembers a new response."""
        self._stored[owner, response_id] = stored
        self._num_bytes += stored.num_bytes
        for item in stored.items:
            self._holders.setdefault((owner, item.item_id), {})[response_id] = None
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self._drop(*next(iter(self._stored)))

    def get(self, owner: bytes, response_id: str) -> Stored | None:
        """The response, which counts as used; None if it is not known."""
        stored = self._stored.get((owner, response_id))
        if stored is not None:
            self._stored.move_to_end((owner, response_id))
        return stored

    def conversation(self, owner: bytes, response_id: str) -> tuple[Item, ...]:
        """All items up to and with a response, oldest first; all its responses count as used.

        Raises KeyError with the id of a response that is not known any more.
        """
        chain: list[Stored] = []
        next_id: str | None = response_id
        while next_id is not None:
            stored = self.get(owner, next_id)
            if stored is None:
                raise KeyError(next_id)
            chain.append(stored)
            next_id = stored.previous_id
        return tuple(item for one in reversed(chain) for item in one.items)

    def forget(self, owner: bytes, response_id: str) -> bool:
        """Forgets a response; False if it was not known."""
        is_known = (owner, response_id) in self._stored
        if is_known:
            self._drop(owner, response_id)
        return is_known

    def item(self, owner: bytes, item_id: str) -> Item | None:
        """An item of the latest response that holds it, which counts as used; None if none does."""
        for response_id in reversed(self._holders.get((owner, item_id), {})):
            stored = self.get(owner, response_id)
            assert stored is not None, "only responses that are stored hold items"
            return next(item for item in reversed(stored.items) if item.item_id == item_id)
        return None

    def _drop(self, owner: bytes, response_id: str) -> None:
        stored = self._stored.pop((owner, response_id))
        self._num_bytes -= stored.num_bytes
        for key in {(owner, item.item_id) for item in stored.items}:
            holders = self._holders[key]
            del holders[response_id]
            if not holders:
                del self._holders[key]


_LEADING = ("system", "developer")


async def fit(
    turns: Sequence[Turn], max_len: int, count: Callable[[Sequence[Turn]], Awaitable[int]]
) -> Sequence[Turn]:
    """The longest end of the conversation that has at most `max_len` tokens as a prompt.

    What the system says first stays, and what is left begins with a turn of the user's, since many
    templates want one there. If nothing fits, the last such end. `count` gives a prompt's length.
    """
    head_len = next((i for i, turn in enumerate(turns) if turn.role not in _LEADING), len(turns))
    head = turns[:head_len]
    later = [i for i in range(head_len + 1, len(turns)) if turns[i].role == "user"]
    starts = [head_len, *later]
    low, high = 0, len(starts) - 1
    # Most conversations fit as they are; among the others, each shorter end is a shorter prompt.
    middle = low
    while low < high:
        if await count([*head, *turns[starts[middle] :]]) <= max_len:
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    return [*head, *turns[starts[low] :]]
