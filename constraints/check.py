"""Texts under a constraint: accepted or not, how far they can stand, what was expected there.

Texts are followed byte by byte, since every split of a text into tokens is legal or none is; only
a constraint that counts tokens is followed in the tokens that the model would make of the text.
"""

from collections.abc import Sequence
from dataclasses import replace

from constraints.errors import ConstraintError
from constraints.expected import Expectation, byte_ids
from constraints.grammars.instances import violations
from constraints.matcher import Language, Matcher
from constraints.spec import ConstraintSpec
from constraints.verdict import Judged, Judgement
from constraints.vocabulary import Vocabulary
from constraints.where.engine import WhereLanguage

# Searches for a shorter text than the one that was found.
_NUM_TRIES = 3


def judge(
    language: Language,
    vocabulary: Vocabulary,
    spec: ConstraintSpec,
    texts: Sequence[str],
    max_len: int,
) -> Judged:
    """Each text under the language of `spec`; a shortest legal one has at most `max_len` tokens."""
    shortest = _shortest(language.matcher(), max_len)
    by_tokens = isinstance(language, WhereLanguage) and language.tokens is not None
    judging = Judging(language, vocabulary, by_tokens=by_tokens)
    judgements = tuple(judging.judge(text) for text in texts)
    if language.not_enforced:
        judgements = tuple(map(_verified, judgements, texts, [spec.text] * len(texts)))
    known = (language.dropped_phrases, language.not_enforced)
    if shortest is None:
        return Judged(None, None, judgements, *known)
    written = b"".join(vocabulary.tokens[token_id] for token_id in shortest)
    return Judged(written.decode(errors="replace"), len(shortest), judgements, *known)


def _verified(judgement: Judgement, text: str, schema_text: str) -> Judgement:
    """What masks accept of a lenient schema, judged by the whole of it."""
    found = violations(schema_text, text) if judgement.accepted else ()
    if not found:
        return judgement
    return replace(judgement, accepted=False, position=len(text), failure=str(found[0]))


def _shortest(matcher: Matcher, max_len: int) -> tuple[int, ...] | None:
    """The shortest of a few that are looked for; the first found may be longer than it need be."""
    shortest = matcher.shortest(max_len)
    for _ in range(_NUM_TRIES):
        if not shortest:
            break
        shorter = matcher.shortest(len(shortest) - 1)
        if shorter is None:
            break
        shortest = shorter
    return shortest


class Judging:
    """Judges texts under one language. `by_tokens`: in the tokens that the model would make."""

    def __init__(self, language: Language, vocabulary: Vocabulary, *, by_tokens: bool) -> None:
        self._language = language
        self._vocabulary = vocabulary
        self._by_tokens = by_tokens
        self._byte_ids = byte_ids(vocabulary)
        self._expectation = Expectation(vocabulary)

    def judge(self, text: str) -> Judgement:
        """The judgement of one text, which has no lone surrogates."""
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
        """Advance as far as whole characters of the text can stand; how many these are."""
        token_ids = self._spelled(text)
        num_legal = matcher.num_legal(token_ids)
        tokens = self._vocabulary.tokens
        num_bytes = sum(len(tokens[token_id]) for token_id in token_ids[:num_legal])
        position = len(text.encode()[:num_bytes].decode(errors="ignore"))
        whole_bytes = len(text[:position].encode())
        for token_id in token_ids:
            whole_bytes -= len(tokens[token_id])
            if whole_bytes < 0:
                break
            matcher.advance(token_id)
        return position

    def _spelled(self, text: str) -> Sequence[int]:
        """The text as tokens, up to the first byte that none can spell."""
        if self._by_tokens:
            return self._vocabulary.backend.tokenize_str(text)
        token_ids = []
        for byte in text.encode():
            token_id = self._byte_ids.get(byte)
            if token_id is None:
                return self._vocabulary.backend.tokenize_str(text)
            token_ids.append(token_id)
        return token_ids
