"""Judges texts under a constraint: whether they are accepted, where they fail, what was expected.

Texts are followed byte by byte, since either all splits of a text into tokens are legal or none;
only for a constraint that counts tokens is the text tokenized as for the model.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from constraints.errors import ConstraintError, EngineFailed
from constraints.expected import Expectation, byte_ids
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.format_checker import MaskFormats
from constraints.grammars.respelling import Respelling, Respelt
from constraints.grammars.schema_validation import violations
from constraints.guiding.completion import spelled
from constraints.matcher import Language, Matcher
from constraints.results import Judgement, JudgeResult, SpellingNote
from constraints.spec import ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from constraints.where.engine import WhereLanguage

# The most searches for a shorter text than the one found.
_NUM_TRIES = 3
# Orders of keys that lead nowhere, of a text that may be an instance.
_MAX_DEAD_ENDS = 50
_UNDECIDED = "it may be an instance: it violates no keyword, but masks are not known to write it"


def judge(
    language: Language,
    vocabulary: Vocabulary,
    spec: ConstraintSpec,
    texts: Sequence[str],
    max_len: int,
) -> JudgeResult:
    """Judge each text; also finds a shortest legal text of at most `max_len` tokens."""
    shortest = _shortest(language.matcher(), max_len)
    by_tokens = isinstance(language, WhereLanguage) and language.tokens is not None
    judging = TextJudge(language, vocabulary, by_tokens=by_tokens)
    if spec.kind is Kind.JSON_SCHEMA and isinstance(language, GrammarLanguage):
        by_value = _ValueJudge(language, spec, judging)
        judgements = tuple(by_value.judge(text) for text in texts)
    else:
        judgements = tuple(judging.judge(text) for text in texts)
    if language.not_enforced:
        judgements = tuple(map(_verified, judgements, texts, [spec.text] * len(texts)))
    written = None
    min_len = None
    if shortest is not None:
        encoded = b"".join(vocabulary.tokens[token_id] for token_id in shortest)
        written = encoded.decode(errors="replace")
        min_len = len(shortest)
    return JudgeResult(
        written, min_len, judgements, language.dropped_phrases, language.not_enforced
    )


def _verified(judgement: Judgement, text: str, schema_text: str) -> Judgement:
    """The judgement of an accepted text by the full schema, where masks were lenient."""
    found = violations(schema_text, text) if judgement.accepted else ()
    if not found:
        return judgement
    return replace(judgement, accepted=False, position=len(text), failure=str(found[0]))


def _shortest(matcher: Matcher, max_len: int) -> tuple[int, ...] | None:
    """The shortest of a few texts found; the first one may be longer than necessary."""
    shortest = matcher.shortest(max_len)
    for _ in range(_NUM_TRIES):
        if not shortest:
            break
        shorter = matcher.shortest(len(shortest) - 1)
        if shorter is None:
            break
        shortest = shorter
    return shortest


class TextJudge:
    """Judges texts under one language. `by_tokens`: in the tokens of the model."""

    def __init__(self, language: Language, vocabulary: Vocabulary, *, by_tokens: bool) -> None:
        self._language = language
        self._vocabulary = vocabulary
        self._by_tokens = by_tokens
        self._byte_ids = byte_ids(vocabulary)
        self._expectation = Expectation(vocabulary)

    def judge(self, text: str) -> Judgement:
        """The judgement of one text without lone surrogates."""
        matcher = self._language.matcher()
        position = 0
        try:
            position = self._follow(matcher, text)
            legal = self._expectation.legal(matcher)
            if position == len(text) and matcher.is_complete:
                return Judgement(True, None, (), len(legal))
            return Judgement(False, position, self._expectation.words(matcher, legal), len(legal))
        except ConstraintError as error:
            return Judgement(False, position, (), 0, failure=str(error))

    def _follow(self, matcher: Matcher, text: str) -> int:
        """Advance over the legal characters of the text; returns their number."""
        token_ids = self._spelled(text)
        tokens = self._vocabulary.tokens
        encoded = text.encode()
        num_legal = matcher.num_legal(token_ids)
        num_bytes = sum(len(tokens[token_id]) for token_id in token_ids[:num_legal])
        position = _whole_characters(encoded[:num_bytes])
        num_whole = len(text[:position].encode())
        num_taken = 0
        for token_id in token_ids:
            if num_taken + len(tokens[token_id]) > num_whole:
                break
            matcher.advance(token_id)
            num_taken += len(tokens[token_id])
        # The next token ends within an illegal character.
        singles = self._in_bytes(encoded[num_taken:num_whole])
        if matcher.num_legal(singles) < num_whole - num_taken:
            return _whole_characters(encoded[:num_taken])
        for token_id in singles:
            matcher.advance(token_id)
        return position

    def _spelled(self, text: str) -> Sequence[int]:
        """The text in tokens, up to the first byte that cannot be spelled."""
        encoded = text.encode()
        if not self._by_tokens:
            token_ids = self._in_bytes(encoded)
            if len(token_ids) == len(encoded):
                return token_ids
        known = spelled(encoded, self._vocabulary)
        if known is not None:
            return known
        return self._vocabulary.beginning(encoded, self._vocabulary.spell(encoded))

    def _in_bytes(self, text: bytes) -> Sequence[int]:
        """The text in tokens of one byte, up to the first byte without one."""
        known = itertools.takewhile(self._byte_ids.__contains__, text)
        return [self._byte_ids[byte] for byte in known]


class _ValueJudge:
    """Judges texts under a schema by their value: keys may come in any order."""

    def __init__(self, language: GrammarLanguage, spec: ConstraintSpec, judging: TextJudge) -> None:
        self._language = language
        self._spec = spec
        self._judging = judging
        self._formats = MaskFormats()

    @cached_property
    def _respelling(self) -> Respelling | None:
        in_bytes = self._language.in_bytes()
        return None if in_bytes is None else Respelling(in_bytes, self._spec)

    def judge(self, text: str) -> Judgement:
        """The judgement of the text, or else of its value in the spelling of masks."""
        judgement = self._judging.judge(text)
        if judgement.position is None or judgement.failure is not None or self._respelling is None:
            return judgement
        try:
            found = self._respelling.respelt(text, max_dead_ends=1)
            if found is None:
                return judgement
            if not found.is_whole and violations(self._spec.text, text, self._formats):
                return self._where_stuck(found, judgement)
            if not found.is_whole:
                found = self._respelling.respelt(text, _MAX_DEAD_ENDS) or found
        except EngineFailed as error:
            return replace(judgement, failure=str(error))
        if found.is_whole:
            return self._of_instance(found, text, judgement.position)
        judgement = self._where_stuck(found, judgement)
        return replace(judgement, note=SpellingNote(judgement.position or 0, _UNDECIDED))

    def _where_stuck(self, found: Respelt, judgement: Judgement) -> Judgement:
        """The judgement of the order that was tried, with its place in the judged text."""
        if found.next_token is None:
            return judgement
        there = self._judging.judge(found.text + found.next_token.text)
        if there.position is None:
            return judgement
        num_legal = there.position - len(found.text)
        return replace(there, position=found.next_position + num_legal)

    def _of_instance(self, found: Respelt, text: str, position: int) -> Judgement:
        """`position`: how far masks follow the text."""
        judgement = self._judging.judge(found.text)
        # Up to draft 4 a number with a point is no integer.
        if found.has_other_numbers:
            judgement = _verified(judgement, text, self._spec.text)
        place, words = found.difference() or (position, "other white space")
        note = SpellingNote(place, f"an instance; masks write {words}")
        return replace(judgement, note=note) if judgement.accepted else judgement


def _whole_characters(text: bytes) -> int:
    """The number of complete characters; the last bytes may begin another one."""
    return len(text.decode(errors="ignore"))
