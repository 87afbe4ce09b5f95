"""Walks over tries of tokens against stepping through each token by itself."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLTokenizer

from constraints.token_trie import PLACE_BITS, PLACE_MASK, Ends, TokenTrie, actions_of
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


def as_pairs(ends: Ends) -> set[tuple[int, int]]:
    found = list(zip(ends.token_ids.tolist(), ends.states.tolist(), strict=True))
    assert len(found) == len(set(found))
    return set(found)


@given(tokens, entries)
def test_a_walk_ends_where_each_token_by_itself_does(
    spelled: list[bytes], drawn: list[tuple[int, int]]
) -> None:
    # A walk asks a vocabulary for nothing but its tokens.
    walk = TokenTrie(Vocabulary(tuple(spelled), (), LLTokenizer("byte")))
    table = packed(drawn)
    columns = walk.bytes_of_levels(CLASSES)
    for start in range(WIDTH, NUM_PLACES * WIDTH, WIDTH):
        wanted = {
            (token_id, state)
            for token_id, token in enumerate(spelled)
            if token and (state := stepped(table, start, token))
        }
        assert as_pairs(walk.walk(table, columns, start)) == wanted


@given(tokens, entries)
def test_actions_lead_where_each_token_by_itself_does(
    spelled: list[bytes], drawn: list[tuple[int, int]]
) -> None:
    walk = TokenTrie(Vocabulary(tuple(spelled), (), LLTokenizer("byte")))
    table = packed(drawn)
    starts = np.arange(1, NUM_PLACES) * WIDTH
    actions = actions_of(walk, table, walk.bytes_of_levels(CLASSES), starts)
    assert actions is not None
    for token_id, token in enumerate(spelled):
        ends = [stepped(table, int(start), token) if token else 0 for start in starts]
        assert actions.ends[actions.of_tokens[token_id]].tolist() == ends
    for action, plainest in enumerate(actions.plainest.tolist()):
        members = np.flatnonzero(actions.of_tokens[: len(spelled)] == action)
        places = [int(walk.plainness[token_id]) for token_id in members]
        assert plainest == min(places, default=len(spelled))
