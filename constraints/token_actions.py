"""Groups tokens by their effect at several places: tokens with equal effects are one action.

    token -> action -> next place for each place    most of 100 000 tokens share their action

A walk takes as many steps as the trie has nodes, for each place. Here nodes of one depth with equal
effects at all places are merged, so that a step is made once for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.token_trie import PLACE_MASK, Packed, TokenTrie

# The most places times actions of one depth, and of all: beyond it walks are as fast.
_MAX_AT_ONCE = 1 << 21
_MAX_STEPS = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """The actions of all tokens at some places.

    ends:      [num_actions, num_places] packed states; those of the last action are all dead
    of_tokens: [vocab_size, up to whole words] the action of each token
    plainest:  [num_actions] the plainest token of each, as its place among all
    """

    ends: Packed
    of_tokens: npt.NDArray[np.uint16]
    plainest: npt.NDArray[np.int64]


def actions_of(
    trie: TokenTrie, table: Packed, columns: Sequence[npt.NDArray[np.int64]], starts: Packed
) -> Actions | None:
    """The actions at some packed places; None: there are too many different ones.

    table, columns: as for `TokenTrie.walk`
    """
    width = 1 + max((int(column.max()) for column in columns), default=0)
    of_nodes = np.zeros(1, dtype=np.int64)  # at each depth: of live nodes their row, -1 of others
    rows = starts[None, :]  # [num_rows, num_places]
    of_tokens = np.full(-(-trie.vocab_size // 32) * 32, -1, dtype=np.int64)
    found: list[Packed] = []
    num_found = num_steps = 0
    for level, column in zip(trie.levels, columns, strict=True):
        above = of_nodes[level.parents]
        keys = above * width + column
        is_met = np.zeros(len(rows) * width, dtype=np.bool_)
        is_met[keys[above >= 0]] = True
        met = np.flatnonzero(is_met)
        num_steps += len(met) * len(starts)
        if len(met) * len(starts) > _MAX_AT_ONCE or num_steps > _MAX_STEPS:
            return None
        rows, numbers = _distinct(_stepped(table, rows[met // width], met % width))
        if not len(rows):
            break
        of_keys = np.full(len(is_met), -1, dtype=np.int64)
        of_keys[met] = numbers
        of_nodes = np.where(above >= 0, of_keys[keys], -1)
        of_ends = of_nodes[level.token_nodes]
        of_tokens[level.token_ids] = np.where(of_ends >= 0, of_ends + num_found, -1)
        found.append(rows)
        num_found += len(rows)
    return _joined(trie, found, of_tokens, len(starts))


def _stepped(table: Packed, above: Packed, classes: npt.NDArray[np.int64]) -> Packed:
    """Rows behind a byte of each row's class; 0 is dead."""
    place = above & PLACE_MASK
    after: Packed = table[place + classes[:, None]]
    is_live = (after & PLACE_MASK) != 0
    after += above
    after -= place
    after *= is_live
    return after


def _distinct(rows: Packed) -> tuple[Packed, npt.NDArray[np.int64]]:
    """The distinct live rows, and the index of each row in them, -1 for dead ones."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 8))).reshape(-1)
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    is_live = rows[first].any(axis=1)
    numbers = np.where(is_live, np.cumsum(is_live) - 1, -1)
    return rows[first[is_live]], numbers[inverse.reshape(-1)]


def _joined(
    trie: TokenTrie, found: list[Packed], of_tokens: npt.NDArray[np.int64], num_places: int
) -> Actions | None:
    """The distinct actions of all depths, and a dead one."""
    is_done = np.zeros(sum(map(len, found)) + 1, dtype=np.bool_)
    is_done[of_tokens] = True
    is_done[-1] = False
    rows = np.concatenate([np.zeros((0, num_places), dtype=np.int64), *found])
    rows, numbers = _distinct(rows[is_done[:-1]])
    if len(rows) >= np.iinfo(np.uint16).max:
        return None
    of_rows = np.full(len(is_done), len(rows), dtype=np.int64)
    of_rows[np.flatnonzero(is_done)] = numbers
    actions = of_rows[of_tokens].astype(np.uint16)
    plainest = np.full(len(rows) + 1, trie.vocab_size, dtype=np.int64)
    # The last write wins: the plainest token comes last.
    plainest[actions[trie.plain_first[::-1]]] = np.arange(trie.vocab_size - 1, -1, -1)
    dead = np.zeros((1, num_places), dtype=np.int64)
    return Actions(np.concatenate([rows, dead]), actions, plainest)
