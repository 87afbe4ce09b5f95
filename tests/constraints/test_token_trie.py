"""Actions of tokens against stepping through each token by itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from constraints.token_trie import PLACE_BITS, PLACE_MASK, TokenTrie, actions_of
from constraints.vocabulary import Vocabulary

# Two letters, so that tokens share beginnings; all other bytes are of a third class.
CLASSES = np.array([{97: 1, 98: 2}.get(byte, 0) for byte in range(256)], dtype=np.uint8)
WIDTH = 3
NUM_PLACES = 5

tokens = st.lists(st.text(alphabet="abc", max_size=6).map(str.encode), min_size=1, max_size=40)
entries = st.lists(
    st.tuples(st.integers(0, NUM_PLACES - 1), st.integers(0, 2)),
    min_size=NUM_PLACES * WIDTH,
    max_size=NUM_PLACES * WIDTH,
)


def packed(drawn: list[tuple[int, int]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    table = np.array(
        [place * WIDTH + (gain << PLACE_BITS) if place else 0 for place, gain in drawn],
        dtype=np.int64,
    )
    table[:WIDTH] = 0
    return table


def stepped(table: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, token: bytes) -> int:
    state = start
    for byte in token:
        place = state & PLACE_MASK
        step = int(table[place + CLASSES[byte]])
        if not step & PLACE_MASK:
            return 0
        state = step + (state - place)
    return state


@given(tokens, entries, st.sets(st.integers(1, NUM_PLACES - 1), min_size=1))
def test_actions_lead_where_each_token_by_itself_does(
    spelled: list[bytes], drawn: list[tuple[int, int]], places: set[int]
) -> None:
    # A trie asks a vocabulary for nothing but its tokens.
    trie = TokenTrie(Vocabulary(tuple(spelled), (), LLTokenizer("byte")))
    table = packed(drawn)
    starts = np.array(sorted(places)) * WIDTH
    actions = actions_of(trie, table, WIDTH, trie.bytes_of_levels(CLASSES), starts)
    assert actions is not None
    for token_id, token in enumerate(spelled):
        ends = [stepped(table, int(start), token) if token else 0 for start in starts]
        assert actions.ends[actions.of_tokens[token_id]].tolist() == ends
    ranks = trie.plain_first.tolist()
    for action, plainest in enumerate(actions.plainest.tolist()):
        members = np.flatnonzero(actions.of_tokens[: len(spelled)] == action)
        assert plainest == min(map(ranks.index, members), default=len(spelled))
