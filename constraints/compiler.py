"""From a spec to a language: the one door to all engines, with a bounded cache behind it."""

from constraints.matcher import Language
from constraints.spec import ConstraintSpec
from constraints.vocabulary import Vocabulary


class Compiler:
    """Compiles for one vocabulary. Owns the cache of languages; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary, *, max_cached: int = 256) -> None:
        self.vocabulary = vocabulary
        self._max_cached = max_cached

    def compile(self, spec: ConstraintSpec) -> Language:
        """The language of `spec`, from the cache if it is there.

        Raises Malformed, NotEnforced, Contradiction, TooComplex.
        """
        raise NotImplementedError(spec)
