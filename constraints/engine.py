"""llguidance behind the Matcher interface: exact masks, raised errors, parallel matchers.

Properties of llguidance that only this file handles:
* a matcher in error still fills a mask, with end tokens only; so every call is checked
* an illegal token breaks a matcher for good; so tokens are validated before they are accepted
* clones of a matcher share their lexer and its lock; so a language keeps several originals
* a lexer out of fuel is broken, for all clones and without an error before the next mask, and
  only a mask fills the fuel up; so one is made between bytes that are followed without masks
* with forcing on, a forced position allows one canonical token only; so forcing is off
* it collects forced bytes to their end, and takes all memory if they have none; so where that may
  happen they are collected here

Fuel is the engine's own unit, about 50 000 a millisecond while compiling and 14 000 while making a
mask, so that a limit in fuel holds on any machine and under any load, as a limit in seconds cannot.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import NoReturn, Self

import numpy as np
from llguidance import LLMatcher, LLParserLimits

from constraints.bitmask import Bitmask, allowed_ids, clear_bits
from constraints.errors import (
    ConstraintError,
    Contradiction,
    EngineFailed,
    IllegalToken,
    Malformed,
    NotEnforced,
    TooComplex,
)
from constraints.guiding.alphabet import alphabet_of, as_bytes, byte_vocabulary, in_bytes
from constraints.guiding.completion import CompletionHints, completes, spelled, text_of
from constraints.guiding.search import MAX_FIRST_TRIES, MAX_TRIES, dive, shortest_completion
from constraints.matcher import Language
from constraints.spec import Translation
from constraints.vocabulary import Vocabulary, first_bytes_of

_CONTRADICTIONS = ("Unsatisfiable schema", "NoExtensionBias", "Regex is empty")
_NOT_ENFORCED = (
    "Unimplemented keys",
    "Unknown format",
    "oneOf constraints are not supported",
    "circular references with sibling keys",
    "are not disjoint",
    "min/maxProperties only supported",
    "lookarounds not supported",
    "look-around",
    "backreferences are not supported",
)
_TOO_COMPLEX = (
    "too large",
    "too complex",
    "too many",
    "too big",
    "fuel",
    "limit",
    "stack level",
    "recursion",
    "can't determine if",
    "Unable to determine if",
)


def error_of(message: str) -> ConstraintError:
    """The error for a message of the engine, with its text."""
    text = message.replace("<non-verbose/>", "").strip()
    kinds: tuple[tuple[type[ConstraintError], tuple[str, ...]], ...] = (
        (Contradiction, _CONTRADICTIONS),
        (NotEnforced, _NOT_ENFORCED),
        (TooComplex, _TOO_COMPLEX),
    )
    for error, phrases in kinds:
        if any(phrase in text for phrase in phrases):
            if "NoExtensionBias" in text:
                text = "no text satisfies the constraint"
            return error(text)
    return Malformed(text)


def limits_of(*, step_fuel: int = 500_000, max_states: int = 60_000) -> LLParserLimits:
    """The limits of a language. Fuel and parser items are of one mask or one token; to the states
    of a lexer all outputs that share it add, 1 to 2 kB each."""
    return LLParserLimits(
        # To build the automaton's first expressions.
        initial_lexer_fuel=5_000_000,
        step_lexer_fuel=step_fuel,
        step_max_items=50_000,
        max_lexer_states=max_states,
        # Eager tables cost up to seconds for a large pattern and save only microseconds later.
        precompute_large_lexemes=False,
        # The engine's state would leak a request's text into messages and logs.
        verbose_errors=False,
    )


LIMITS = limits_of()

# More bytes than are usually taken at once; a search continues from there.
MAX_FORCED_BYTES = 64
# Of what the engine itself finds: rules that double double it, to some millions.
_MAX_FORCED_AT_ONCE = 1 << 12


def deterministic_suffix_of(inner: LLMatcher, vocabulary: Vocabulary) -> bytes:
    """The bytes with which every legal text continues; `inner` is advanced, or breaks."""
    row: Bitmask = np.zeros(vocabulary.num_words, dtype=np.int32)
    singles = alphabet_of(vocabulary).singles
    forced = bytearray()
    while len(forced) < MAX_FORCED_BYTES and not inner.is_accepting():
        _fill(inner, row)
        legal = allowed_ids(row)
        if inner.is_error() or not len(legal) or int(legal[-1]) >= len(vocabulary.tokens):
            break
        firsts = first_bytes_of(vocabulary)[legal]
        # A special token has no single bytes.
        token_id = int(legal[0]) if len(legal) == 1 else singles[firsts[0]]
        is_one = token_id is not None and (firsts == firsts[0]).all()
        if not is_one or inner.try_consume_tokens([token_id]) != 1:
            break
        forced += vocabulary.tokens[token_id]
    return bytes(forced)


# The first line of every grammar text; line numbers in the engine's messages include it.
HEADER = '%llguidance {"no_forcing": true}\n'

_JSON = f"{HEADER}start: %json"

# Another original of a language is compiled only if that takes less than this.
_MAX_SPARE_COMPILE_S = 0.05
_MAX_ORIGINALS = min(8, os.cpu_count() or 1)
# Bytes that are followed with one filling. Schemas of 100 properties take some 55 000 of fuel for
# so many, a tenth of the least `step_fuel`, and some 500 000 for an answer of 12 kB.
_MAX_UNFUELLED = 512
# The most live clones before another original is compiled: one output and the initial state that it
# was copied from. So a schema that is used once is compiled once.
_MAX_CLONES = 2


class Original:
    """A matcher that is never advanced, its live clones, and the fuel of the lexer they share."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.clones: weakref.WeakSet[GrammarMatcher] = weakref.WeakSet()
        # Threads may lose each other's counts: the bound is far below what the fuel is enough for.
        self._num_unfuelled = 0

    def spend(self, num_bytes: int) -> str:
        """A clone is about to follow so many bytes. Returns the error of a lexer that is broken."""
        if self._num_unfuelled + num_bytes > _MAX_UNFUELLED:
            # At the start, where it is cheap; of a new clone, since others may remember theirs.
            first = self.matcher.deep_copy()
            first.compute_bitmask()
            if first.is_error():
                return first.get_error()
            self._num_unfuelled = 0
        self._num_unfuelled += num_bytes
        return ""


class GrammarLanguage:
    """A language compiled by llguidance.

    not_enforced: JSON Pointers of the parts of a lenient schema that masks do not enforce
    grammar:      the grammar text for the engine
    hints:        texts of the language or of its parts; searches for completions try them
    suggested:    a completion that another process found; tried before a search
    """

    knows_distances = False
    may_have_dead_ends = False
    dropped_phrases: tuple[str, ...] = ()

    def __init__(
        self,
        vocabulary: Vocabulary,
        grammar: str,
        explain: Callable[[str], ConstraintError] = error_of,
        not_enforced: tuple[str, ...] = (),
        hints: CompletionHints | None = None,
        *,
        limits: LLParserLimits = LIMITS,
        may_run_on: bool = False,
        watch: str = "",
        hint_without_text: str = "",
    ) -> None:
        """`explain` turns a message of the engine into the error to raise.

        may_run_on: terminals are greedy: bytes may be forced without end, see `grammars.lark`
        watch:      what a `WatchedLanguage` watches
        hint_without_text: what to look for in a constraint of which no text is found
        """
        self.vocabulary = vocabulary
        self.hints = hints or CompletionHints()
        self.grammar = grammar
        self.not_enforced = not_enforced
        self.may_run_on = may_run_on
        self.may_have_dead_ends = self.may_have_dead_ends or may_run_on
        self.watch = watch
        self.hint_without_text = hint_without_text
        # Schemas are in it, and their leaves among the hints.
        self.has_json = "%json" in grammar
        self.suggested: tuple[int, ...] | None = None
        self._limits = limits
        self._explain = explain
        self._in_bytes: GrammarLanguage | None = None
        self._has_bytes = True
        self._lock = threading.Lock()
        began = time.perf_counter()
        original = self._compile()
        if original.is_error():
            raise explain(original.get_error())
        # An empty language shows only in the first mask.
        first = original.deep_copy()
        row = np.zeros(vocabulary.num_words, dtype=np.int32)
        _fill(first, row)
        if first.is_error():
            raise explain(first.get_error())
        clear_bits(row, vocabulary.end_ids)
        self.is_over_at_once = original.is_accepting() and not row.any()
        self.compile_s = time.perf_counter() - began
        # Computed on first use; all outputs start with it.
        self.first_completion: tuple[int, ...] | None = None
        self._originals = [Original(original)]

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, translation: Translation, *, may_run_on: bool
    ) -> "GrammarLanguage":
        """Compile what another process has translated. Raises the engine's errors."""
        language = cls(
            vocabulary,
            translation.grammar,
            not_enforced=translation.not_enforced,
            hints=CompletionHints(translation.hints),
            may_run_on=may_run_on,
            watch=translation.watch,
        )
        language.suggested = translation.completion
        return language

    @property
    def translation(self) -> Translation:
        """What another process can reuse."""
        return Translation(
            self.grammar,
            self.not_enforced,
            self.hints.all(),
            self.first_completion,
            self.watch,
        )

    def matcher(self) -> "GrammarMatcher":
        """A matcher at the start of an output: takes microseconds, or sometimes a compilation."""
        with self._lock:
            original = min(self._originals, key=lambda each: len(each.clones), default=None)
            is_busy = original is not None and len(original.clones) >= _MAX_CLONES
            if original is None or (is_busy and self._may_have_another()):
                original = Original(self._compile())
                self._originals.append(original)
            return self._copy_of(original)

    def _copy_of(self, original: Original) -> "GrammarMatcher":
        return GrammarMatcher(self, original, original.matcher.deep_copy())

    def discard(self, original: Original) -> None:
        """Stop cloning an original: the lexer of its clones has too many states."""
        with self._lock:
            self._originals = [each for each in self._originals if each is not original]

    def prepare_search(self) -> None:
        """See `Language`."""
        self.hints.all()
        self.in_bytes()

    def in_bytes(self) -> "GrammarLanguage | None":
        """The same texts over `byte_vocabulary`; compiled on first use.

        None if it does not compile.
        """
        if self._in_bytes is not None or not self._has_bytes:
            return self._in_bytes
        with self._lock:
            if self._in_bytes is None and self._has_bytes:
                try:
                    self._in_bytes = type(self)(
                        byte_vocabulary(),
                        in_bytes(self.grammar),
                        self._explain,
                        limits=self._limits,
                        may_run_on=self.may_run_on,
                        watch=self.watch,
                    )
                except ConstraintError:
                    self._has_bytes = False
            return self._in_bytes

    def _may_have_another(self) -> bool:
        return len(self._originals) < _MAX_ORIGINALS and self.compile_s < _MAX_SPARE_COMPILE_S

    def _compile(self) -> LLMatcher:
        return LLMatcher(
            self.vocabulary.backend,
            self.grammar,
            log_level=0,
            limits=self._limits,
        )


def is_json(language: Language) -> bool:
    """Whether all texts are JSON."""
    return isinstance(language, GrammarLanguage) and language.grammar.startswith(_JSON)


class GrammarMatcher:
    """The state of one output in a grammar. See `constraints.matcher.Matcher`."""

    _max_tries = MAX_TRIES

    def __init__(self, language: GrammarLanguage, original: Original, inner: LLMatcher) -> None:
        self._language = language
        self._tokens = language.vocabulary.tokens
        self._end_ids = frozenset(language.vocabulary.end_ids)
        self._original = original
        self._inner = inner
        self._made: list[int] = []
        self._has_ended = False
        original.clones.add(self)

    def fill_mask(self, row: Bitmask, max_len: int | None = None) -> None:
        """Overwrite `row` with the legal tokens; `max_len` is ignored."""
        if self._has_ended:
            row[:] = 0
            return
        _fill(self._inner, row)
        self._check()

    def is_quick(self, max_len: int | None) -> bool:
        """Never: the engine's time is not predictable."""
        return False

    def advance(self, token_id: int) -> None:
        """Accept a token. Raises IllegalToken and then changes nothing."""
        if self._has_ended:
            raise IllegalToken(f"token {token_id} after the end")
        if token_id in self._end_ids:
            if not self.is_complete:
                raise IllegalToken(f"end token {token_id} where the text is not complete")
            self._has_ended = True
            return
        if not (0 <= token_id < len(self._tokens) and self._tokens[token_id]):
            raise IllegalToken(f"token {token_id} stands for no text")
        if self._consume([token_id]) != 1:
            raise IllegalToken(f"token {token_id} is not legal here")

    def num_legal(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens could be accepted in sequence."""
        if self._has_ended:
            return 0
        tried = list(token_ids)
        for index, token_id in enumerate(tried):
            if not (0 <= token_id < len(self._tokens) and self._tokens[token_id]):
                del tried[index + int(token_id in self._end_ids) :]
                break
        if not tried:
            return 0
        if tried[0] in self._end_ids:
            return int(self.is_complete)
        num_bytes = self._num_bytes(tried)
        if num_bytes > _MAX_UNFUELLED:
            return self._num_legal_of_many(tried)
        self._spend(num_bytes)
        count = self._inner.validate_tokens(tried)
        self._check()
        return count

    def _num_legal_of_many(self, token_ids: list[int]) -> int:
        """Only the last of the tokens may be an end."""
        ahead = self.fork()
        has_end = token_ids[-1] in self._end_ids
        texts = token_ids[:-1] if has_end else token_ids
        count = ahead._consume(texts)
        return count + int(has_end and count == len(texts) and ahead.is_complete)

    def deterministic_suffix(self) -> bytes:
        """The bytes with which every legal text continues, or the first of them."""
        if self._language.may_run_on:
            return deterministic_suffix_of(self._inner.deep_copy(), self._language.vocabulary)
        forced = self._inner.compute_ff_bytes()[:_MAX_FORCED_AT_ONCE]
        self._check()
        self._spend(len(forced))
        is_bytewise = self._language.vocabulary is byte_vocabulary()
        return as_bytes(forced) if is_bytewise else forced

    def shortest(
        self, max_len: int, tails: Sequence[tuple[int, ...]] = (), num_failed: int = 0
    ) -> tuple[int, ...] | None:
        """Tokens that complete the text from here, at most `max_len`; None: none found.

        Raises TooComplex where the engine compiles a constraint that it then cannot follow.
        """
        if self._made:
            return self._found(max_len, tails, num_failed)
        language = self._language
        known = language.first_completion
        if known is not None and len(known) <= max_len:
            return known
        found = language.suggested
        if found is None and language.hints.first:
            found = spelled(language.hints.first[0], language.vocabulary)
        if not found or len(found) > max_len or not completes(self, language.vocabulary, found):
            found = self._found(max_len, tails, num_failed)
        language.first_completion = found
        return found

    def _found(
        self, max_len: int, tails: Sequence[tuple[int, ...]], num_failed: int
    ) -> tuple[int, ...] | None:
        language = self._language
        hints = language.hints.all()
        failure: EngineFailed | None = None
        if language.has_json:
            # The engine for searches is compiled later.
            before = text_of(tuple(self._made), language.vocabulary)
            try:
                # What is watched takes longer to try.
                is_quick = not self._made and not language.watch
                max_tries = MAX_FIRST_TRIES if is_quick else self._max_tries
                found = dive(self, language.vocabulary, max_len, hints, before, max_tries)
                if found is None and not self._made:
                    found = dive(self, language.vocabulary, max_len, hints, prefers_hints=True)
                if found is not None:
                    return found
            except EngineFailed as error:
                failure = error
        found = shortest_completion(
            self,
            language.vocabulary,
            max_len,
            tails,
            hints,
            self._bytewise(),
            num_failed=num_failed,
        )
        if found is None and failure is not None and not self._made:
            raise TooComplex(f"the constraint cannot be followed: {failure}") from failure
        return found

    def _bytewise(self) -> "GrammarMatcher | None":
        """A matcher over single bytes at the same place."""
        in_bytes = self._language.in_bytes()
        if in_bytes is None:
            return None
        bytewise = in_bytes.matcher()
        try:
            bytewise.follow(text_of(tuple(self._made), self._language.vocabulary))
        except EngineFailed:
            return None  # it reached its limits: the search works without it
        return bytewise

    def follow(self, token_ids: Sequence[int]) -> None:
        """Accept several tokens that are known to be legal."""
        if self._consume(token_ids) != len(token_ids):
            raise EngineFailed("a legal text is illegal in single bytes")

    def _consume(self, token_ids: Sequence[int]) -> int:
        """Accept the tokens up to the first illegal one; returns how many."""
        num_done = 0
        for part in self._parts(token_ids):
            self._spend(self._num_bytes(part))
            num_legal = self._inner.try_consume_tokens(part)
            self._check()
            self._made += part[:num_legal]
            num_done += num_legal
            if num_legal < len(part):
                break
        return num_done

    def _parts(self, token_ids: Sequence[int]) -> Iterator[list[int]]:
        """The tokens in parts that one filling of fuel is enough for."""
        part: list[int] = []
        num_bytes = 0
        for token_id in token_ids:
            num_bytes += len(self._tokens[token_id])
            if part and num_bytes > _MAX_UNFUELLED:
                yield part
                part = []
                num_bytes = len(self._tokens[token_id])
            part.append(token_id)
        if part:
            yield part

    def _num_bytes(self, token_ids: Sequence[int]) -> int:
        return sum([len(self._tokens[token_id]) for token_id in token_ids])

    def fork(self) -> Self:
        """A copy, which shares the lexer and its lock."""
        other = copy(self)
        other._inner = self._inner.deep_copy()
        other._made = self._made.copy()
        self._original.clones.add(other)
        return other

    @property
    def is_complete(self) -> bool:
        """Whether the text so far is in the language."""
        complete = self._inner.is_accepting()
        self._check()
        return complete

    @property
    def is_over(self) -> bool:
        """Whether nothing but the end may follow."""
        if not self._made:
            return self._language.is_over_at_once
        return self.is_complete and self._inner.is_stopped()

    def _spend(self, num_bytes: int) -> None:
        error = self._original.spend(num_bytes)
        if error:
            self._fail(error)

    def _check(self) -> None:
        if self._inner.is_error():
            self._fail(self._inner.get_error())

    def _fail(self, error: str) -> NoReturn:
        self._language.discard(self._original)
        if "NoExtensionBias" in error:
            raise EngineFailed("no token is legal here")
        raise EngineFailed(f"the matcher broke: {_first_line(error)}")


def _fill(inner: LLMatcher, row: Bitmask) -> None:
    inner.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)


def _first_line(message: str) -> str:
    return message.strip().partition("\n")[0][:200]
