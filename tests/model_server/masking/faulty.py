"""A language whose engine has a fault, among those that have none."""

from collections.abc import Callable
from typing import Any

from constraints.bitmask import Bitmask
from constraints.matcher import Language, Matcher
from constraints.spec import ConstraintSpec, Kind
from constraints.translation import Translation
from constraints.vocabulary import Vocabulary
from model_server.masking.constraint_cache import ConstraintCache
from tests.model_server.masking.shard import of

LETTERS = of(Kind.REGEX, "[a-z]+")
# Read by the languages below: the same letters, followed by an engine with a fault.
FAULTY = of(Kind.REGEX, "[a-z]+ ")


class FaultyMatcher:
    """A matcher that calls `fault` before each mask after the first few."""

    def __init__(self, matcher: Matcher, fault: Callable[[], None], num_good: int) -> None:
        self._matcher = matcher
        self._fault = fault
        self._num_good = num_good

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        if self._num_good <= 0:
            self._fault()
        self._num_good -= 1
        self._matcher.fill_mask(row, max_len)

    def fork(self) -> "FaultyMatcher":
        return FaultyMatcher(self._matcher.fork(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


class FaultyLanguage:
    """A language with such matchers."""

    def __init__(self, language: Language, fault: Callable[[], None], num_good: int) -> None:
        self._language = language
        self._fault = fault
        self._num_good = num_good

    def matcher(self) -> FaultyMatcher:
        return FaultyMatcher(self._language.matcher(), self._fault, self._num_good)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._language, name)


class FaultyLanguages(ConstraintCache):
    """The languages of a shard, one of which has a fault."""

    def __init__(
        self, languages: ConstraintCache, fault: Callable[[], None], num_good: int
    ) -> None:
        self._languages = languages
        self._fault = fault
        self._num_good = num_good

    def vocabulary(self) -> Vocabulary:
        return self._languages.vocabulary()

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        language = self._languages.compile(spec, translation)
        if spec != FAULTY.spec:
            return language
        return FaultyLanguage(language, self._fault, self._num_good)

    def is_cached(self, spec: ConstraintSpec) -> bool:
        return self._languages.is_cached(spec)
