"""Compiles specs into languages, choosing the engine; keeps a bounded cache.

A choice between strings is one terminal: 50 000 strings compile in a fifth of a second.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from constraints.engine import HEADER, GrammarLanguage
from constraints.errors import (
    ConstraintError,
    Contradiction,
    EngineFailed,
    Malformed,
    NotEnforced,
    OutOfReach,
    TooComplex,
    TooManyStates,
)
from constraints.grammars import gbnf, lark
from constraints.grammars.hints import hints_of
from constraints.grammars.watching import WatchedLanguage
from constraints.matcher import ANY_LEN, AnyText, Language
from constraints.regex import writing
from constraints.schema import json_schema
from constraints.schema.json_schema import SchemaGrammar
from constraints.spec import ConstraintSpec, Kind, Translation
from constraints.vocabulary import Vocabulary, is_mark, kept_with_vocabulary
from constraints.where.engine import compile_where
from constraints.where.machine import atoms
from constraints.where.parser import parse
from constraints.where.terms import Matches

# A lexer's state for each byte: beyond it the walk along the string would fail, a second later.
_MAX_CHOICE_BYTES = 50_000


def _choice_grammar(text: str) -> str:
    """The grammar of exactly the strings in a JSON list.

    Raises Malformed, Contradiction, TooComplex.
    """
    rule = "a choice is a JSON list of strings"
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{rule}: {error}") from None
    if not isinstance(choices, list):
        raise Malformed(rule)
    if not choices:
        raise Contradiction("a choice between no strings: the list is empty")
    for index, choice in enumerate(choices):
        if not isinstance(choice, str):
            raise Malformed(f"{rule}; item {index} is no string")
        # Lone surrogates have no UTF-8 and so no tokens.
        if any("\ud800" <= character <= "\udfff" for character in choice):
            raise Malformed(f"choice {index} has half of a surrogate pair, which is no character")
        if (num_bytes := len(choice.encode())) > _MAX_CHOICE_BYTES:
            raise TooComplex(
                f"choice {index} has {num_bytes} bytes, and at most {_MAX_CHOICE_BYTES} are allowed"
            )
    literals = " | ".join(json.dumps(each, ensure_ascii=False) for each in dict.fromkeys(choices))
    return f"{HEADER}start: CHOICE\nCHOICE: {literals}\n"


# Of the text of a constraint in UTF-8. Patterns and grammars need less than schemas.
MAX_BYTES: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.JSON_SCHEMA: 4_000_000,
        Kind.REGEX: 100_000,
        Kind.LARK: 1_000_000,
        Kind.GBNF: 1_000_000,
        Kind.CHOICE: 4_000_000,
        Kind.WHERE: 100_000,
        Kind.TEXT: 0,
    }
)
MIB = 1 << 20
# What a language takes, measured as the growth of a process that compiled hundreds: about so many
# bytes, and for each character of its text.
_BYTES_EACH = 160 << 10
_BYTES_PER_CHAR: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.JSON_SCHEMA: 230,
        Kind.REGEX: 900,
        Kind.CHOICE: 70,
        Kind.LARK: 800,
        Kind.GBNF: 800,
        Kind.WHERE: 2800,
        Kind.TEXT: 0,
    }
)


class Compiler:
    """Compiles for one vocabulary. Owns the cache of languages; thread-safe.

    The cache has about `max_bytes` at most, but for the newest language.
    """

    def __init__(self, vocabulary: Vocabulary, *, max_bytes: int = 512 * MIB) -> None:
        self.vocabulary = vocabulary
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Least recently used first. A future is inserted when its compilation starts.
        self._futures: OrderedDict[ConstraintSpec, Future[Language]] = OrderedDict()
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """About what the cached languages take; a refusal counts as what was asked for."""
        return self._num_bytes

    def compile(self, spec: ConstraintSpec, translation: Translation | None = None) -> Language:
        """The language of `spec`, from the cache if possible.

        translation: of `spec`, if another process has made it already
        Raises Malformed, NotEnforced, Contradiction, TooComplex.
        """
        num_bytes = len(spec.text.encode("utf-8", "surrogatepass"))
        if num_bytes > MAX_BYTES[spec.kind]:
            raise TooComplex(
                f"the {spec.kind.value} has {num_bytes} bytes, and at most"
                f" {MAX_BYTES[spec.kind]} are allowed"
            )
        with self._lock:
            future = self._futures.get(spec)
            is_ours = future is None
            if future is None:
                future = self._futures[spec] = Future()
                self._num_bytes += _num_bytes(spec)
                while self._num_bytes > self._max_bytes and len(self._futures) > 1:
                    self._forget(next(iter(self._futures)))
            else:
                self._futures.move_to_end(spec)
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
            future = self._futures.get(spec)
        return future is not None and future.done()

    def _fulfil(
        self, spec: ConstraintSpec, translation: Translation | None, future: "Future[Language]"
    ) -> None:
        try:
            if translation is None:
                language = self._compile(spec)
            else:
                language = _engine_of(translation.watch).of(
                    self.vocabulary, translation, may_run_on=spec.kind is Kind.LARK
                )
        except ConstraintError as error:
            future.set_exception(error.with_traceback(None))
        except RecursionError:
            future.set_exception(TooComplex("the constraint is nested too deeply"))
        else:
            future.set_result(language)
        finally:
            if not future.done():
                # A bug, or this thread is being ended: waiting threads must be released.
                with self._lock:
                    self._forget(spec)
                future.set_exception(RuntimeError("the constraint's compilation was broken off"))

    def _forget(self, spec: ConstraintSpec) -> None:
        if self._futures.pop(spec, None) is not None:
            self._num_bytes -= _num_bytes(spec)

    def _compile(self, spec: ConstraintSpec) -> Language:
        match spec.kind:
            case Kind.JSON_SCHEMA:
                return self._schema_language(spec)
            case Kind.REGEX:
                return self._pattern_language(spec)
            case Kind.LARK:
                return self._lark_language(spec)
            case Kind.TEXT:
                return AnyText(self.vocabulary)
            case Kind.GBNF:
                grammar = gbnf.to_grammar(spec.text)
            case Kind.CHOICE:
                grammar = _choice_grammar(spec.text)
            case Kind.WHERE:
                return self._where_language(spec)
        return GrammarLanguage(self.vocabulary, grammar, hints=hints_of(spec))

    def _lark_language(self, spec: ConstraintSpec) -> Language:
        named = special_ids_of(self.vocabulary)
        return GrammarLanguage(
            self.vocabulary,
            lark.to_grammar(spec.text, spec.whitespace, named, lenient=spec.lenient),
            partial(lark.explain, spec.text),
            hints=hints_of(spec),
            may_run_on=True,
            hint_without_text=lark.HINT_WITHOUT_TEXT,
        )

    def _where_language(self, spec: ConstraintSpec) -> Language:
        """An expression with our own automata; one that is a pattern alone as any pattern."""
        expression = parse(spec.text)
        try:
            return compile_where(expression, self.vocabulary, is_plain=True)
        except OutOfReach as reason:
            patterns = [atom.pattern for atom in atoms(expression) if isinstance(atom, Matches)]
            try:
                if isinstance(expression, Matches):
                    return self._pattern_language(replace(spec, kind=Kind.REGEX, text=patterns[0]))
                for pattern in patterns:
                    writing.translate(pattern)
            except NotEnforced as refusal:
                # Its place is one in the pattern.
                raise NotEnforced(f"in a pattern, {refusal}") from None
            raise TooComplex(
                f"the expression is followed by its states, and these are too many ({reason}):"
                " shorten repetitions in its patterns, or say less at once"
            ) from None

    def _pattern_language(self, spec: ConstraintSpec) -> Language:
        """A pattern with llguidance or, if it has look-around, with our own automata."""
        try:
            return self._matching(spec)
        except Contradiction:
            raise writing.contradiction(spec.text) from None

    def _matching(self, spec: ConstraintSpec) -> Language:
        try:
            grammar = writing.to_grammar(spec.text)
        except NotEnforced as refusal:
            try:
                return compile_where(Matches(spec.text), self.vocabulary)
            except TooManyStates:
                raise TooComplex(
                    "a pattern that looks around is followed by its states, and this one has too"
                    " many: shorten its repetitions"
                ) from None
            except OutOfReach:
                raise refusal from None
        language = GrammarLanguage(self.vocabulary, grammar, hints=hints_of(spec))
        writing.follow(language, spec.text)
        return language

    def _schema_language(self, spec: ConstraintSpec) -> Language:
        try:
            return self._of_schema(spec, json_schema.prepare(spec))
        except NotEnforced as refusal:
            if spec.lenient or spec.strict or spec.is_part:
                raise
            language = self._judged(spec, refusal)
            if language is None:
                raise
            return language

    def _judged(self, spec: ConstraintSpec, refusal: NotEnforced) -> Language | None:
        """What masks cannot keep of a schema is judged where a value ends; None: no text is found.

        Raises NotEnforced for what cannot be judged.
        """
        try:
            schema = json_schema.prepare(spec, judges=True)
            language = self._of_schema(spec, schema)
            return None if language.matcher().shortest(ANY_LEN) is None else language
        except NotEnforced as error:
            raise (
                error if error.pointer and error.pointer != refusal.pointer else refusal
            ) from None
        except (EngineFailed, TooComplex):
            return None

    def _of_schema(self, spec: ConstraintSpec, schema: SchemaGrammar) -> GrammarLanguage:
        return _engine_of(schema.watch)(
            self.vocabulary,
            schema.text,
            schema.explain,
            schema.not_enforced,
            hints_of(spec),
            watch=schema.watch,
        )


def _engine_of(watch: str) -> type[GrammarLanguage]:
    return WatchedLanguage if watch else GrammarLanguage


@kept_with_vocabulary(1)
def special_ids_of(vocabulary: Vocabulary) -> frozenset[int]:
    """The tokens that stand for no text, without those that end an output."""
    return frozenset(index for index, token in enumerate(vocabulary.tokens) if is_mark(token))


def _num_bytes(spec: ConstraintSpec) -> int:
    return _BYTES_EACH + _BYTES_PER_CHAR[spec.kind] * len(spec.text)
