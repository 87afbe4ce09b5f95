"""Judges texts under a constraint: whether they are accepted, where they fail, what was expected.

Texts are followed byte by byte, since either all splits of a text into tokens are legal or none;
only for a constraint that counts tokens is the text tokenized as for the model. What was expected
is read from the mask at the place where a text fails, and shown in classes of characters.
"""

import json
import re
import string
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, allowed_ids
from constraints.errors import ConstraintError
from constraints.grammars.watching import WatchedLanguage
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.completion import spelled
from constraints.matcher import Language, Matcher
from constraints.schema.reading import no_key_twice
from constraints.schema.validation import MaskFormats, violations
from constraints.spec import ConstraintSpec, Judgement, JudgeResult, Kind, SpellingNote, Whitespace
from constraints.vocabulary import Vocabulary, first_bytes_of
from constraints.where.engine import WhereLanguage

THE_END = "the end"
_OTHERS = "characters beyond ASCII"
# The most literals that are shown, and the most ranges of characters.
_FEW = 12
_MAX_RUNS = 12
_MAX_LITERAL_LEN = 40
_TEXT = frozenset(map(ord, string.printable)) - frozenset(b"\x0b\x0c\r")
_NAMES = {string.digits: "a digit", string.ascii_lowercase: "a to z"}


def _classes(firsts: Sequence[int], others: tuple[str, ...]) -> tuple[str, ...]:
    missing = _TEXT.difference(firsts)
    if others == (_OTHERS,) and len(missing) <= _FEW:
        excepted = ", ".join(repr(chr(byte)) for byte in sorted(missing))
        return (f"any character but {excepted}" if excepted else "any character",)
    runs = _runs(firsts)
    if len(runs) > _MAX_RUNS:
        return (f"one of {len(firsts)} ASCII characters", *others)
    return (*runs, *others)


def _runs(firsts: Sequence[int]) -> list[str]:
    """Four and more neighbouring characters as one range."""
    runs: list[list[int]] = []
    for byte in firsts:
        if runs and runs[-1][-1] == byte - 1:
            runs[-1].append(byte)
        else:
            runs.append([byte])
    words = []
    for run in runs:
        text = "".join(map(chr, run))
        if len(run) < 4:
            words += [repr(character) for character in text]
        else:
            words.append(_NAMES.get(text, f"{text[0]!r} to {text[-1]!r}"))
    return words


def _quoted(text: bytes) -> str:
    shown = text.decode(errors="ignore")
    return repr(shown if len(shown) <= _MAX_LITERAL_LEN else shown[:_MAX_LITERAL_LEN] + "...")


_MISSPELT = (
    "an instance; masks write it otherwise: keys in the schema's order, and numbers, characters and"
    " white space in one spelling"
)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
# What a JSON text without its strings looks like; white space that was asked for is a part of the
# constraint.
_LAYOUTS = {
    Whitespace.FLEXIBLE: re.compile(r"(?s:.*)"),
    Whitespace.COMPACT: re.compile(r"\S*"),
    Whitespace.SPACED: re.compile(r"(?:[,:] |[^,:\s])*"),
    Whitespace.OPTIONAL: re.compile(r"(?:[,:] ?|[^,:\s])*"),
}


def judge(
    language: Language,
    vocabulary: Vocabulary,
    spec: ConstraintSpec,
    texts: Sequence[str],
    max_len: int,
) -> JudgeResult:
    """Judge each text; also finds a short legal text of at most `max_len` tokens."""
    shortest = language.matcher().shortest(max_len)
    by_tokens = isinstance(language, WhereLanguage) and language.tokens is not None
    judging = TextJudge(language, vocabulary, by_tokens=by_tokens)
    judgements = []
    for text in texts:
        judgement = judging.judge(text)
        if spec.kind is Kind.JSON_SCHEMA:
            judgement = _by_value(judgement, text, spec)
        # Where masks were lenient, by the full schema.
        if language.not_enforced and judgement.accepted:
            found = violations(spec.text, text, MaskFormats())
            if found:
                judgement = replace(judgement, accepted=False, position=len(text), failure=found[0])
        judgements.append(judgement)
    checked = language.checked_at_close if isinstance(language, WatchedLanguage) else ()
    encoded = b"".join(vocabulary.tokens[token_id] for token_id in shortest or ())
    return JudgeResult(
        None if shortest is None else encoded.decode(errors="replace"),
        None if shortest is None else len(shortest),
        tuple(judgements),
        language.dropped_phrases,
        language.not_enforced,
        checked,
    )


def _by_value(judgement: Judgement, text: str, spec: ConstraintSpec) -> Judgement:
    """The judgement of a text that masks do not write: it is an instance if its value is one.

    What masks follow to its end, as the first digit of a number, is left unfinished.
    """
    if judgement.failure is not None or judgement.position in (None, len(text)):
        return judgement
    try:
        json.loads(text, object_pairs_hook=no_key_twice)
    except (ValueError, RecursionError):
        return judgement
    if not _LAYOUTS[spec.whitespace].fullmatch(_STRING.sub("", text)):
        return judgement
    found = violations(spec.text, text, MaskFormats())
    if found:
        return replace(judgement, failure=found[0])
    note = SpellingNote(judgement.position or 0, _MISSPELT)
    return replace(judgement, accepted=True, position=None, expected=(), note=note)


class TextJudge:
    """Judges texts under one language. `by_tokens`: in the tokens of the model."""

    def __init__(self, language: Language, vocabulary: Vocabulary, *, by_tokens: bool) -> None:
        self._language = language
        self._vocabulary = vocabulary
        self._by_tokens = by_tokens
        self._singles = alphabet_of(vocabulary).singles
        self._first_bytes = first_bytes_of(vocabulary)

    def judge(self, text: str) -> Judgement:
        """The judgement of one text without lone surrogates."""
        matcher = self._language.matcher()
        position = 0
        try:
            position = self._follow(matcher, text)
            legal = self._legal(matcher)
            if position == len(text) and matcher.is_complete:
                return Judgement(True, None, (), len(legal))
            return Judgement(False, position, self._words(matcher, legal), len(legal))
        except ConstraintError as error:
            return Judgement(False, position, (), 0, failure=str(error))

    def _legal(self, matcher: Matcher) -> npt.NDArray[np.int64]:
        """The ids of the tokens that may follow."""
        row: Bitmask = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        matcher.fill_mask(row)
        legal = allowed_ids(row)
        return legal[legal < len(self._vocabulary.tokens)]

    def _words(self, matcher: Matcher, legal: npt.NDArray[np.int64]) -> tuple[str, ...]:
        """What may follow: literals, or classes of characters."""
        ends = (THE_END,) if matcher.is_complete else ()
        forced = b"" if ends else matcher.deterministic_suffix()
        # Several characters may share their first bytes.
        if forced.decode(errors="ignore"):
            return (_quoted(forced),)
        firsts = self._firsts(legal[~np.isin(legal, self._vocabulary.end_ids)])
        num_ascii = sum(byte < 0x80 for byte in firsts)
        others: tuple[str, ...] = ()
        if num_ascii < len(firsts):
            literals = self._literals(matcher, b"", firsts[num_ascii:])
            are_known = literals and all(each.decode(errors="ignore") for each in literals)
            others = tuple(map(_quoted, literals)) if are_known else (_OTHERS,)
        if num_ascii > _FEW:
            return (*_classes(firsts[:num_ascii], others), *ends)
        literals = self._literals(matcher, b"", firsts[:num_ascii])
        singles = _runs([each[0] for each in literals if len(each) == 1])
        return (*singles, *(_quoted(each) for each in literals if len(each) > 1), *others, *ends)

    def _firsts(self, token_ids: npt.NDArray[np.int64]) -> list[int]:
        firsts: list[int] = np.unique(self._first_bytes[token_ids]).tolist()
        return firsts

    def _literals(self, matcher: Matcher, begun: bytes, nexts: Sequence[int]) -> list[bytes]:
        """Characters that begin so, each with the text that must follow it; none if there are many.

        Of a character that single bytes do not lead through, the beginning.
        """
        found: list[bytes] = []
        for byte in nexts if len(nexts) <= _FEW else ():
            token_id = self._singles[byte]
            literal = begun + bytes([byte])
            # If tokens are counted, a longer one may be legal while its first byte is not.
            if token_id is None or matcher.num_legal((token_id,)) == 0:
                found.append(literal)
                continue
            ahead = matcher.fork()
            ahead.advance(token_id)
            if literal.decode(errors="ignore"):
                forced = b"" if ahead.is_complete else ahead.deterministic_suffix()
                found.append(literal + forced)
            else:
                found += self._literals(ahead, literal, self._firsts(self._legal(ahead))) or [b""]
        return found if len(found) <= _FEW else []

    def _follow(self, matcher: Matcher, text: str) -> int:
        """Advance over the legal tokens of the text; returns the number of their characters."""
        tokens = self._vocabulary.tokens
        legal = [*self._spelled(text)]
        del legal[matcher.num_legal(legal) :]
        encoded = b"".join(tokens[each] for each in legal)
        # The last of them may end within an illegal character.
        while encoded.decode(errors="ignore").encode() != encoded:
            encoded = encoded.removesuffix(tokens[legal.pop()])
        for token_id in legal:
            matcher.advance(token_id)
        return len(encoded.decode())

    def _spelled(self, text: str) -> Sequence[int]:
        """The text in tokens, up to the first byte that cannot be spelled."""
        encoded = text.encode()
        singles = [self._singles[byte] for byte in encoded]
        if not self._by_tokens and None not in singles:
            return [each for each in singles if each is not None]
        known = spelled(encoded, self._vocabulary)
        if known is not None:
            return known
        return self._vocabulary.beginning(encoded, self._vocabulary.spell(encoded))
