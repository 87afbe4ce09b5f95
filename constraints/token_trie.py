"""Runs a byte automaton over every token of a vocabulary at once, from one place or from many.

    tokens as a trie, level by level:   parent of each node | byte that leads to it
    states:                             one vector step a level, from the parents' states

A state packs a place in the automaton's table and the counts gained so far into one number:

    gains ... | place * the table's width          the low PLACE_BITS bits are 0 if it is dead

Tokens with equal effects at all of the places are one action. So nodes of one depth with equal
effects are merged, and a step is made once for all of them.

    token -> action -> next place for each place    most of 100 000 tokens share their action
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from constraints.vocabulary import Vocabulary, kept_with_vocabulary

Packed = npt.NDArray[np.int64]

PLACE_BITS = 27
PLACE_MASK = (1 << PLACE_BITS) - 1

_ALNUM = np.array([bytes([byte]).isalnum() for byte in range(256)])
_PRINTABLE = np.array([0x20 <= byte < 0x7F for byte in range(256)])


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Nodes of equal depth, in lexicographic order.

    parents:     [num_nodes] in the level above
    bytes:       [num_nodes]
    token_ids:   the tokens that end here
    token_nodes: the node of each
    """

    parents: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.uint8]
    token_ids: npt.NDArray[np.int64]
    token_nodes: npt.NDArray[np.int64]


class TokenTrie:
    """The trie of a vocabulary's tokens; immutable once made, shared by threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        all_tokens = vocabulary.tokens
        self.vocab_size = len(all_tokens)
        spelled = sorted(
            filter(all_tokens.__getitem__, range(self.vocab_size)), key=all_tokens.__getitem__
        )
        tokens = [all_tokens[token_id] for token_id in spelled]
        self.max_token_len = max(map(len, tokens), default=0)
        self.levels = _levels_of(tokens, np.array(spelled, dtype=np.int64))
        # All tokens, plain ones first.
        self.plain_first = _plain_first(all_tokens)

    def bytes_of_levels(self, classes: npt.NDArray[np.uint8]) -> list[npt.NDArray[np.int64]]:
        """The class of each node's byte, by level: the `columns` of `actions_of`."""
        return [classes[level.bytes].astype(np.int64) for level in self.levels]


def _plain_first(tokens: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """The ids: letters and digits, other printable ASCII, the rest; short before long."""
    lengths = np.array([len(token) for token in tokens], dtype=np.int64)
    flat = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    ends = np.cumsum(lengths)

    def num_in(kind: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """How many of each token's bytes are of a kind."""
        sums = np.concatenate([[0], np.cumsum(kind[flat])])
        counts: npt.NDArray[np.int64] = sums[ends] - sums[ends - lengths]
        return counts

    is_plain = (num_in(_ALNUM) == lengths) & (lengths > 0)
    is_odd = num_in(_PRINTABLE) < lengths
    return np.lexsort((lengths, np.where(is_plain, 0, 1 + is_odd)))


def _levels_of(tokens: list[bytes], ids: npt.NDArray[np.int64]) -> list[Level]:
    """The levels of the trie of sorted tokens."""
    lengths = np.array([len(token) for token in tokens], dtype=np.int64)
    flat = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    offsets = np.cumsum(lengths) - lengths
    rows = np.arange(len(tokens))  # tokens that have a byte at this depth
    nodes_above = np.zeros(len(tokens), dtype=np.int64)
    levels: list[Level] = []
    while len(rows):
        letters = flat[offsets[rows] + len(levels)]
        is_new = np.ones(len(rows), dtype=np.bool_)
        is_new[1:] = (nodes_above[1:] != nodes_above[:-1]) | (letters[1:] != letters[:-1])
        nodes = np.cumsum(is_new) - 1
        ending = lengths[rows] == len(levels) + 1
        levels.append(Level(nodes_above[is_new], letters[is_new], ids[rows[ending]], nodes[ending]))
        rows = rows[~ending]
        nodes_above = nodes[~ending]
    return levels


@kept_with_vocabulary(1)
def trie_of(vocabulary: Vocabulary) -> TokenTrie:
    """The vocabulary's trie; takes half a second the first time."""
    return TokenTrie(vocabulary)


# The most places times actions of one depth, and of all: beyond it walks are as fast.
_MAX_AT_ONCE = 1 << 21
_MAX_STEPS = 1 << 23


@dataclass(frozen=True, slots=True, eq=False)
class Actions:
    """The actions of all tokens at some places.

    ends:      [num_actions, num_places] packed states; those of the first action are all dead
    of_tokens: [vocab_size, up to whole words] the action of each token
    plainest:  [num_actions] the plainest token of each that is live, as its rank among all
    """

    ends: Packed
    of_tokens: npt.NDArray[np.unsignedinteger]
    plainest: npt.NDArray[np.int64]


def actions_of(
    trie: TokenTrie,
    table: Packed,
    width: int,
    columns: Sequence[npt.NDArray[np.int64]],
    starts: Packed,
) -> Actions | None:
    """The actions at some packed places; None: too many different ones at several places.

    table:   [num_places * width] the packed state that each class of bytes leads to; place 0 is
             dead and leads to 0
    columns: of `bytes_of_levels`
    """
    rows = starts[None, :]  # [num_rows, num_places]; behind the root the first is dead
    of_nodes = np.zeros(1, dtype=np.int64)  # the row of each node of a level
    found = [np.zeros((1, len(starts)), dtype=np.int64)]
    of_tokens = np.zeros(-(-trie.vocab_size // 32) * 32, dtype=np.int64)
    num_found = 1
    num_steps = 0
    for level, column in zip(trie.levels, columns, strict=True):
        keys = of_nodes[level.parents]
        keys *= width
        keys += column
        of_keys = np.zeros(len(rows) * width, dtype=np.int64)
        of_keys[keys] = 1
        met = np.flatnonzero(of_keys)
        num_steps += len(met) * len(starts)
        if len(starts) > 1 and (len(met) * len(starts) > _MAX_AT_ONCE or num_steps > _MAX_STEPS):
            return None
        rows, of_keys[met] = _distinct(_stepped(table, rows[met // width], met % width))
        if len(rows) == 1:
            break
        of_nodes = of_keys[keys]
        of_ends = np.arange(num_found - 1, num_found - 1 + len(rows))
        of_ends[0] = 0
        of_tokens[level.token_ids] = of_ends[of_nodes[level.token_nodes]]
        found.append(rows[1:])
        num_found += len(rows) - 1
    return _joined(trie, np.concatenate(found), of_tokens)


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
    """The distinct rows, first a dead one, and the index of each row in them."""
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.shape[1] * 8))).reshape(-1)
    _, first, inverse = np.unique(whole, return_index=True, return_inverse=True)
    is_live = rows[first].any(axis=1)
    numbers = np.where(is_live, np.cumsum(is_live), 0)
    dead = np.zeros((1, rows.shape[1]), dtype=np.int64)
    return np.concatenate([dead, rows[first[is_live]]]), numbers[inverse.reshape(-1)]


def _joined(trie: TokenTrie, rows: Packed, of_tokens: npt.NDArray[np.int64]) -> Actions:
    """The distinct actions of all depths with a token."""
    is_met = np.zeros(len(rows), dtype=np.bool_)
    is_met[of_tokens] = True
    of_rows = np.zeros(len(rows), dtype=np.int64)
    ends, of_rows[is_met] = _distinct(rows[is_met])
    actions = of_rows[of_tokens].astype(np.min_scalar_type(len(ends)))
    plainest = np.full(len(ends), trie.vocab_size, dtype=np.int64)
    # The last write wins: the plainest token comes last.
    plainest[actions[trie.plain_first[::-1]]] = np.arange(trie.vocab_size - 1, -1, -1)
    return Actions(ends, actions, plainest)
