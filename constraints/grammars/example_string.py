"""Short example strings of a schema, by length, patterns and formats."""

from collections.abc import Mapping

from constraints.errors import ConstraintError
from constraints.grammars.example_formats import TEXTS, TEXTS_BY_PATTERN, pattern_of
from constraints.grammars.example_text import MAX_LEN, MAX_PATTERN_LEN, example_text
from constraints.grammars.patterns import Concat, Pattern
from constraints.grammars.regex import searching
from constraints.grammars.regex_intersection import (
    Effort,
    PatternAutomaton,
    PatternTooLarge,
    common_text,
)
from constraints.grammars.schema.reading import Json

# The filler of long strings: vocabularies have its words as tokens.
_FILLER = "the "
# The most characters of patterns that are parsed for one schema.
_MAX_PATTERNS_LEN = 60_000
# Longer texts are not matched against patterns.
_MAX_COMPARED_LEN = 1_000
_Key = tuple[tuple[str, ...], tuple[str, ...], int, int | None]


class ExampleStrings:
    """Finds example strings of one schema; caches its patterns."""

    def __init__(self) -> None:
        self._patterns: dict[str, Pattern | None] = {}
        self._texts: dict[_Key, str | None] = {}
        self._patterns_len = 0
        self._automata: dict[str, PatternAutomaton | None] = {}
        self._effort = Effort()

    def example(self, schema: Mapping[str, Json]) -> str | None:
        """A short string of a schema without choices, where `pattern` and `format` may be lists."""
        min_len = int(schema.get("minLength", 0))
        max_len = schema.get("maxLength")
        if min_len > MAX_LEN or (max_len is not None and max_len < min_len):
            return None
        sources, formats = (tuple(_listed(schema.get(key, []))) for key in ("pattern", "format"))
        if not sources and not formats:
            return (_FILLER * (min_len // len(_FILLER) + 1))[:min_len]
        key = (sources, formats, min_len, max_len)
        if key not in self._texts:
            self._texts[key] = self._found(*key)
        return self._texts[key]

    def matching(self, pattern: str, min_len: int) -> str | None:
        """A text that matches the pattern somewhere, such as a property's name."""
        return self.example({"pattern": pattern, "minLength": min_len})

    def has(self, pattern: str, text: str) -> bool:
        """Whether the text matches the pattern somewhere; True where that is unknown."""
        if pattern not in self._automata:
            self._automata[pattern] = self._automaton(pattern)
        automaton = self._automata[pattern]
        if automaton is None or len(text) > _MAX_COMPARED_LEN:
            return True
        try:
            return automaton.matches(text)
        except PatternTooLarge:
            return True

    def _automaton(self, source: str) -> PatternAutomaton | None:
        pattern = self._read(source)
        try:
            return None if pattern is None else PatternAutomaton(pattern, self._effort)
        except PatternTooLarge:
            return None

    def _found(
        self, sources: tuple[str, ...], formats: tuple[str, ...], min_len: int, max_len: int | None
    ) -> str | None:
        if len(sources) + len(formats) == 1:
            text = self._of_one(sources, formats, min_len)
            limit = MAX_LEN if max_len is None else max_len
            if text is not None and min_len <= len(text) <= limit:
                return text
        patterns = [*map(self._read, sources), *map(pattern_of, formats)]
        known = [each for each in patterns if each is not None]
        if len(known) < len(patterns):
            return None
        try:
            return common_text(known, self._effort, min_len, max_len)
        except PatternTooLarge:
            return None if formats else self._in_a_row(sources, min_len)

    def _of_one(
        self, sources: tuple[str, ...], formats: tuple[str, ...], min_len: int
    ) -> str | None:
        if formats:
            return TEXTS.get(formats[0])
        if sources[0] in TEXTS_BY_PATTERN:
            return TEXTS_BY_PATTERN[sources[0]]
        pattern = self._read(sources[0])
        return None if pattern is None else example_text(pattern, min_len)

    def _in_a_row(self, sources: tuple[str, ...], min_len: int) -> str | None:
        """A text that contains a match of each pattern, in sequence."""
        # Anchored matches go to the edges.
        ordered = sorted(sources, key=lambda each: (each[:1] != "^", each[-1:] == "$"))
        known = [each for each in map(self._read, ordered) if each is not None]
        return example_text(Concat(tuple(known)), min_len)

    def _read(self, source: str) -> Pattern | None:
        if source not in self._patterns:
            self._patterns_len += len(source)
            is_short = len(source) <= MAX_PATTERN_LEN and self._patterns_len <= _MAX_PATTERNS_LEN
            try:
                self._patterns[source] = searching(source) if is_short else None
            except ConstraintError:
                self._patterns[source] = None  # the compiler refuses it with a better message
        return self._patterns[source]


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value]
