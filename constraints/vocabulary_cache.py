"""Caches values that are computed from a vocabulary, as long as the vocabulary lives.

@kept_with_vocabulary(4)
def trie_of(vocabulary): ...        of each vocabulary the last 4 different calls
"""

from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Concatenate, ParamSpec, TypeVar

from constraints.vocabulary import Vocabulary

P = ParamSpec("P")
T = TypeVar("T")
_Made = Callable[Concatenate[Vocabulary, P], T]


def kept_with_vocabulary(maxsize: int) -> Callable[[_Made[P, T]], _Made[P, T]]:
    """Cache the last `maxsize` different calls for each vocabulary. For pure functions.

    Two threads may compute the same value at the same time.
    """

    def decorator(make: _Made[P, T]) -> _Made[P, T]:
        @wraps(make)
        def kept(vocabulary: Vocabulary, /, *args: P.args, **kwargs: P.kwargs) -> T:
            made = vocabulary.kept.get(make)
            if made is None:
                # A cached value that refers to the vocabulary is a cycle; the collector frees it.
                fresh = lru_cache(maxsize)(partial(make, vocabulary))
                made = vocabulary.kept.setdefault(make, fresh)
            found: T = made(*args, **kwargs)
            return found

        return kept

    return decorator
