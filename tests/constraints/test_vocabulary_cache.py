"""What is made of vocabularies: once, and for as long as they are there."""

import gc
import weakref

from llguidance import LLTokenizer

from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.stop_table import table_of
from constraints.token_trie import trie_of
from constraints.vocabulary import Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary


def letters() -> Vocabulary:
    return Vocabulary((b"a", b"b", b"ab", b""), (3,), "of a test", LLTokenizer("byte"))


def test_a_thing_is_made_once_of_each_vocabulary() -> None:
    made: list[tuple[Vocabulary, int]] = []

    @kept_with_vocabulary(2)
    def thing(vocabulary: Vocabulary, number: int) -> object:
        made.append((vocabulary, number))
        return object()

    one, other = letters(), letters()

    assert thing(one, 1) is thing(one, 1)
    assert thing(one, 1) is not thing(other, 1)
    assert made == [(one, 1), (other, 1)]
    thing(one, 2), thing(one, 3), thing(one, 1)
    assert len(made) == 5


def test_a_vocabulary_that_nobody_needs_goes_with_all_that_was_made_of_it() -> None:
    vocabulary = letters()
    trie = trie_of(vocabulary)
    table_of(vocabulary, ("ab",)), alphabet_of(vocabulary)
    assert trie_of(vocabulary) is trie
    gone = weakref.ref(trie)

    del vocabulary, trie
    gc.collect()

    assert gone() is None
