"""The replicas of one model, and which of them a request goes to: nothing but state, no network.

    the prompt's pieces -> who was sent the longest beginning of it, unless above the bound
                        -> the ring's first below the bound, from the beginning's point on

The bound is 1.25 times the mean of the requests in flight. Replicas report nothing: a front knows
what it sent. Fronts with the same replicas choose alike, since the ring depends on names alone.
"""

import hashlib
from bisect import bisect
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from math import ceil
from typing import Any

import orjson

PIECE_LEN = 256
# Of one prompt: half a MiB of it says where it belongs.
MAX_PIECES = 2048
LOAD_BOUND = 1.25
# However few run, a replica may have so many.
_LEAST_BOUND = 2
_POINTS = 64
# Of all replicas' prompts: 64 MiB of text.
_MAX_KNOWN = 1 << 18
# In the order in which chat templates write them.
_PROMPT_FIELDS = (
    "model",
    "system",
    "instructions",
    "tools",
    "messages",
    "prompt",
    "input",
    "inputs",
)


class PickKind(StrEnum):
    """Why a replica was picked: it was `sent` the beginning, by the `ring`, or has the `least`."""

    SENT = "sent"
    RING = "ring"
    LEAST = "least"


@dataclass(frozen=True, slots=True)
class Pick:
    """The replica for a request."""

    name: str
    kind: PickKind


def prompt_pieces(fields: Mapping[str, Any], salt: bytes) -> list[bytes]:
    """The pieces of a request's prompt, by the fields of any API's body; `salt`: its API key."""
    text = bytearray()
    for name in _PROMPT_FIELDS:
        value = fields.get(name)
        if value is not None:
            text += value.encode() if isinstance(value, str) else orjson.dumps(value)
    return pieces_of(bytes(text), salt)


def pieces_of(text: bytes, salt: bytes) -> list[bytes]:
    """A hash for each beginning of a text whose length is a multiple of 256 bytes.

    A shorter text has one for the whole.
    """
    if not text:
        return []
    num_pieces = max(1, min(len(text) // PIECE_LEN, MAX_PIECES))
    piece = _digest(salt)
    pieces = []
    for begin in range(0, num_pieces * PIECE_LEN, PIECE_LEN):
        piece = _digest(piece + text[begin : begin + PIECE_LEN])
        pieces.append(piece)
    return pieces


def _digest(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).digest()


class Replicas:
    """Owner of who is there, who is ready, how many requests each has, and what it was sent.

    Names must be those by which every front knows the replicas.
    """

    def __init__(self, names: Iterable[str] = (), *, max_known: int = _MAX_KNOWN) -> None:
        self._max_known = max_known
        # Requests in flight, by replica.
        self._loads: dict[str, int] = {}
        self._ready: set[str] = set()
        self._ring: list[tuple[bytes, str]] = []
        # The replica that was sent a beginning last, the least recently sent first.
        self._sent: OrderedDict[bytes, str] = OrderedDict()
        self.replace(names)

    @property
    def names(self) -> list[str]:
        """All that there are."""
        return list(self._loads)

    @property
    def ready(self) -> list[str]:
        """Those that take requests."""
        return [name for name in self._loads if name in self._ready]

    def load(self, name: str) -> int:
        """How many requests it has."""
        return self._loads[name]

    def replace(self, names: Iterable[str]) -> None:
        """These are there from now on; new ones are not ready yet."""
        self._loads = {name: self._loads.get(name, 0) for name in sorted(names)}
        self._ready &= self._loads.keys()
        self._ring = sorted(
            (_digest(f"{name}/{number}".encode()), name)
            for name in self._loads
            for number in range(_POINTS)
        )

    def admit(self, name: str) -> bool:
        """It takes requests from now on; whether that is new."""
        is_new = name in self._loads and name not in self._ready
        if is_new:
            self._ready.add(name)
        return is_new

    def eject(self, name: str) -> bool:
        """It takes none until it is admitted again; whether that is new."""
        is_new = name in self._ready
        self._ready.discard(name)
        return is_new

    def pick(self, pieces: Sequence[bytes], without: Collection[str] = ()) -> Pick | None:
        """The replica for a prompt, `without` those that were tried; None: there is none.

        Changes nothing.
        """
        loads = {name: self._loads[name] for name in self.ready if name not in without}
        if not loads:
            return None
        if not pieces:
            return Pick(min(loads, key=loads.__getitem__), PickKind.LEAST)
        bound = max(_LEAST_BOUND, ceil(LOAD_BOUND * (sum(loads.values()) + 1) / len(loads)))
        for piece in reversed(pieces):
            name = self._sent.get(piece)
            if name in loads:
                if loads[name] < bound:
                    return Pick(name, PickKind.SENT)
                break
        begin = bisect(self._ring, (pieces[0], ""))
        walk = chain(range(begin, len(self._ring)), range(begin))
        # The one with the least is below the bound, so there is an end.
        names = (self._ring[place][1] for place in walk)
        return Pick(next(name for name in names if loads.get(name, bound) < bound), PickKind.RING)

    def begin(self, name: str, pieces: Sequence[bytes]) -> None:
        """A request with these pieces is sent to a replica."""
        self._loads[name] += 1
        # A beginning is kept for longer than what continues it.
        for piece in reversed(pieces):
            self._sent[piece] = name
            self._sent.move_to_end(piece)
        while len(self._sent) > self._max_known:
            self._sent.popitem(last=False)

    def end(self, name: str) -> None:
        """It has ended; the replica may be gone, and be back without it."""
        if self._loads.get(name):
            self._loads[name] -= 1
