"""A completion of few tokens for a text that has to be long: it takes the longest legal token.

A search over bytes finds a way to the end, but its texts have a token for nearly every byte. This
one uses masks over the model's own tokens, so each step costs more.
"""

from collections.abc import Sequence
from string import ascii_lowercase
from time import thread_time

import numpy as np
import numpy.typing as npt

from constraints.bitmask import allowed_ids
from constraints.errors import EngineFailed, IllegalToken
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.completion import KnownCompletion
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary
from constraints.vocabulary_cache import kept_with_vocabulary

# The most CPU seconds for each attempt. Two hundred words take a third of it, so results do not
# depend on the load of the machine.
MAX_TIME_S = 0.3
# Where all of these are legal, words are: they can fill a text that has to be longer.
_LETTERS = frozenset(ascii_lowercase.encode())
# Preferred to words where legal: the end of a JSON string or of a word, or nothing. The right one
# depends on the language, so each is tried.
_BEFORE_WORDS = (b'"', b" ", b"")


def long_completion(
    matcher: Matcher, vocabulary: Vocabulary, max_len: int
) -> KnownCompletion | None:
    """Tokens that complete the text, at most `max_len`; None: none found this way."""
    for before_words in _BEFORE_WORDS:
        try:
            found = _complete_with_words(matcher.fork(), vocabulary, max_len, before_words)
        except (EngineFailed, IllegalToken):
            continue
        if found is not None:
            return found
    return None


def _complete_with_words(
    matcher: Matcher, vocabulary: Vocabulary, max_len: int, before_words: bytes
) -> KnownCompletion | None:
    deadline = thread_time() + MAX_TIME_S
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    path: list[int] = []
    while not matcher.is_complete:
        if len(path) >= max_len or thread_time() > deadline:
            return None
        matcher.fill_mask(row)
        singles = alphabet_of(vocabulary).allowed(row)[0].tolist()
        if not singles:
            return None
        token_id = _next(singles, allowed_ids(row).tolist(), vocabulary, before_words)
        matcher.advance(token_id)
        path.append(token_id)
    return tuple(path)


def _next(
    singles: Sequence[int], legal: Sequence[int], vocabulary: Vocabulary, before_words: bytes
) -> int:
    """`singles`: the single bytes among `legal`, those first that tend to lead to an end."""
    by_byte = {vocabulary.tokens[each][:1]: each for each in reversed(singles)}
    if not {key[0] for key in by_byte} >= _LETTERS:
        return singles[0]
    if before_words in by_byte:
        return by_byte[before_words]
    ids = np.asarray(legal)
    longest: int = ids[np.argmax(_lengths(vocabulary)[ids])].item()
    return longest


@kept_with_vocabulary(1)
def _lengths(vocabulary: Vocabulary) -> npt.NDArray[np.int64]:
    """The number of bytes of each token, [num_tokens]."""
    return np.array([len(token) for token in vocabulary.tokens], dtype=np.int64)
