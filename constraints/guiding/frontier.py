"""The frontier of a place: the edges that its mask allows, and a fingerprint of the mask."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from constraints.bitmask import Bitmask, allowed_ids
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.completion import KnownCompletion, text_of
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

# The most tokens of several bytes that are tried where single bytes are not enough.
MAX_LONGER = 16
# Behind this zeros may repeat without end, as in a number that has to be above zero.
_BEFORE_ZEROS = re.compile(rb"[-.]0*\Z")
_MAX_ZEROS = 24
_CLOSERS = {b"{": b"}", b"[": b"]"}


@dataclass(frozen=True, slots=True)
class MaskSignature:
    """The tokens that may follow at one place.

    singles:   edges of one token, the best first
    num_first: how many of them are the first of their kind
    starts:    the bytes that may follow
    fingerprint: equal for equal masks
    """

    singles: tuple[KnownCompletion, ...]
    num_first: int
    starts: frozenset[int]
    fingerprint: bytes


def mask_signature(
    matcher: Matcher, path: KnownCompletion, vocabulary: Vocabulary, row: Bitmask, left: int | None
) -> MaskSignature:
    """The signature of the mask behind `path`. `row` is overwritten.

    left: tokens, for masks that know distances: single bytes are too short where they are counted
    """
    matcher.fill_mask(row, left)
    allowed, num_first = alphabet_of(vocabulary).allowed(row)
    ids = allowed.tolist()
    starts = frozenset([vocabulary.tokens[token_id][0] for token_id in ids])
    singles = _in_order(path, ids, vocabulary)
    longer = [] if left is None else _longer(row, set(ids), vocabulary)
    edges = tuple((token_id,) for token_id in (*singles, *longer))
    return MaskSignature(edges, num_first, starts, allowed.tobytes())


def _in_order(path: KnownCompletion, ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """The single bytes in a better order, where the last byte suggests one.

    A number ends before it gets longer, a one comes before zeros, what has just begun is closed.
    """
    last = text_of(path[-_MAX_ZEROS:], vocabulary)
    places = {vocabulary.tokens[token_id]: place for place, token_id in enumerate(ids)}
    zero, one, comma = (places.get(byte) for byte in (b"0", b"1", b","))
    end = places.get(_CLOSERS.get(last[-1:], b""))
    if zero is not None and one is not None and _BEFORE_ZEROS.search(last):
        ids[zero], ids[one] = ids[one], ids[zero]
    if comma is not None and last[-1:].isdigit():
        first = min(places[byte] for byte in places if byte.isdigit() or byte == b",")
        ids.insert(first, ids.pop(comma))
    elif end is not None:
        ids.insert(0, ids.pop(end))
    return ids


def _longer(row: Bitmask, known: Collection[int], vocabulary: Vocabulary) -> list[int]:
    """A few tokens, evenly spread over the mask."""
    others = [token_id for token_id in allowed_ids(row).tolist() if token_id not in known]
    others = [token_id for token_id in others if vocabulary.tokens[token_id]]
    return others[:: max(1, len(others) // MAX_LONGER)]
