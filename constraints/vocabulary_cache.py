"""What is made of a vocabulary once, and kept with it: it goes when the vocabulary does.

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
    """Of each vocabulary the last `maxsize` different calls are remembered. For pure functions.

    A thread that asks while another one makes it may make it, too.
    """

    def decorator(make: _Made[P, T]) -> _Made[P, T]:
        @wraps(make)
        def kept(vocabulary: Vocabulary, /, *args: P.args, **kwargs: P.kwargs) -> T:
            made = vocabulary.kept.get(make)
            if made is None:
                # A vocabulary that is made of what it keeps is a circle, which the collector ends.
                fresh = lru_cache(maxsize)(partial(make, vocabulary))
                made = vocabulary.kept.setdefault(make, fresh)
            found: T = made(*args, **kwargs)
            return found

        return kept

    return decorator
