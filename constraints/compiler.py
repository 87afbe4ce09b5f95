"""Compiles specs into languages, choosing the engine; keeps a bounded cache."""

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex
from constraints.grammars import (
    choice,
    engine_messages,
    json_schema,
    lark,
    regex,
    where_fallback,
)
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.gbnf import translation as gbnf
from constraints.grammars.json_schema import SchemaGrammar
from constraints.grammars.limits import LIMITS
from constraints.grammars.source_hints import hints_of
from constraints.matcher import Language
from constraints.spec import ConstraintSpec, Kind
from constraints.token_trie import TokenTrie, trie_of
from constraints.translation import Translation
from constraints.vocabulary import Vocabulary
from constraints.where.compile import compile_where
from constraints.where.limits import OutOfReach, TooManyStates
from constraints.where.parser import parse
from constraints.where.terms import Matches

# The most characters of cached specs; their languages take a few times as much memory.
_MAX_CACHED_CHARS = 32_000_000


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """Counters since the compiler was made. Refusals are cached, too."""

    hits: int
    misses: int
    num_cached: int
    compile_s: float


class Compiler:
    """Compiles for one vocabulary. Owns the cache of languages; thread-safe."""

    def __init__(self, vocabulary: Vocabulary, *, max_cached: int = 256) -> None:
        self.vocabulary = vocabulary
        self._max_cached = max_cached
        self._lock = threading.Lock()
        # Least recently used first. A future is inserted when its compilation starts.
        self._cache: OrderedDict[ConstraintSpec, Future[Language]] = OrderedDict()
        self._cached_chars = 0
        self._trie_lock = threading.Lock()
        self._hits = 0
        self._misses = 0
        self._compile_s = 0.0

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        """The language of `spec`, from the cache if possible.

        translation: of `spec`, if another process has made it already
        Raises Malformed, NotEnforced, Contradiction, TooComplex.
        """
        LIMITS[spec.kind].check_text(spec.kind, spec.text)
        with self._lock:
            future = self._cache.get(spec)
            is_ours = future is None
            if future is None:
                future = self._cache[spec] = Future()
                self._cached_chars += len(spec.text)
                self._misses += 1
                self._evict(spec)
            else:
                self._cache.move_to_end(spec)
                self._hits += 1
        if is_ours:
            self._fulfil(spec, translation, future)
        error = future.exception()
        if error is not None:
            # The exception is shared by all callers: drop the frames of earlier ones.
            raise error.with_traceback(None)
        return future.result()

    def is_cached(self, spec: ConstraintSpec) -> bool:
        """Whether `compile` would return at once."""
        with self._lock:
            future = self._cache.get(spec)
        return future is not None and future.done()

    def stats(self) -> CompilerStats:
        """Counters, for metrics."""
        with self._lock:
            return CompilerStats(self._hits, self._misses, len(self._cache), self._compile_s)

    def _fulfil(
        self, spec: ConstraintSpec, translation: Translation | None, future: "Future[Language]"
    ) -> None:
        began = time.perf_counter()
        try:
            language = self._compile(spec) if translation is None else self._of(spec, translation)
        except ConstraintError as error:
            future.set_exception(error.with_traceback(None))
        except RecursionError:
            future.set_exception(TooComplex("the constraint is nested too deeply"))
        else:
            future.set_result(language)
        finally:
            with self._lock:
                self._compile_s += time.perf_counter() - began
                if not future.done():
                    self._forget(spec)
            if not future.done():
                # A bug, or this thread is being ended: waiting threads must be released.
                future.set_exception(RuntimeError("the constraint's compilation was broken off"))

    def _token_trie(self) -> TokenTrie:
        """The vocabulary's trie, built on first use: it takes half a second."""
        with self._trie_lock:
            return trie_of(self.vocabulary)

    def _evict(self, newest: ConstraintSpec) -> None:
        while (
            len(self._cache) > self._max_cached or self._cached_chars > _MAX_CACHED_CHARS
        ) and next(iter(self._cache)) is not newest:
            self._forget(next(iter(self._cache)))

    def _forget(self, spec: ConstraintSpec) -> None:
        if self._cache.pop(spec, None) is not None:
            self._cached_chars -= len(spec.text)

    def _of(self, spec: ConstraintSpec, translation: Translation) -> Language:
        limits = LIMITS[spec.kind]
        return GrammarLanguage.of(self.vocabulary, translation, limits, engine_messages.explain)

    def _compile(self, spec: ConstraintSpec) -> Language:
        limits = LIMITS[spec.kind]
        explain, may_run_on = engine_messages.explain, False
        match spec.kind:
            case Kind.JSON_SCHEMA:
                return self._schema_language(spec)
            case Kind.REGEX:
                return self._pattern_language(spec)
            case Kind.LARK:
                translated = lark.to_grammar(spec.text, spec.whitespace)
                grammar, may_run_on = translated.text, translated.may_run_on
                explain = partial(lark.explain, spec.text)
            case Kind.GBNF:
                grammar = gbnf.to_grammar(spec.text)
            case Kind.CHOICE:
                grammar = choice.to_grammar(spec.text)
            case Kind.WHERE:
                expression = parse(spec.text)
                try:
                    return compile_where(expression, self.vocabulary, self._token_trie())
                except OutOfReach:
                    grammar = where_fallback.to_grammar(expression, spec.text)
        return GrammarLanguage(
            *(self.vocabulary, grammar, limits, explain),
            hints=hints_of(spec, grammar),
            may_run_on=may_run_on,
        )

    def _pattern_language(self, spec: ConstraintSpec) -> Language:
        """A pattern with llguidance or, if it has look-around, with our own automata."""
        try:
            return self._matching(spec)
        except Contradiction:
            raise regex.contradiction(spec.text) from None

    def _matching(self, spec: ConstraintSpec) -> Language:
        try:
            grammar = regex.to_grammar(spec.text)
        except NotEnforced as refusal:
            try:
                return compile_where(Matches(spec.text), self.vocabulary, self._token_trie())
            except TooManyStates:
                raise TooComplex(
                    "a pattern that looks around is followed by its states, and this one has too"
                    " many: shorten its repetitions"
                ) from None
            except OutOfReach:
                raise refusal from None
        limits, hints = LIMITS[spec.kind], hints_of(spec)
        return GrammarLanguage(
            self.vocabulary, grammar, limits, engine_messages.explain, hints=hints
        )

    def _schema_language(self, spec: ConstraintSpec) -> Language:
        limits = LIMITS[spec.kind]
        schema = json_schema.prepare(spec.text, spec.whitespace, spec.lenient, limits)
        while True:
            try:
                return GrammarLanguage(
                    self.vocabulary,
                    schema.text,
                    limits,
                    schema.explain,
                    schema.not_enforced,
                    hints_of(spec, rewritten=schema.rewritten),
                )
            except Contradiction as error:
                simpler = _simpler(schema, error)
                if simpler is None:
                    raise
                schema = simpler


def _simpler(schema: SchemaGrammar, error: Contradiction) -> SchemaGrammar | None:
    try:
        return schema.without_empty_definition()
    except Contradiction:
        raise error from None  # the more specific error
