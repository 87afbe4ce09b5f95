"""Describes for people what may follow, read from a mask."""

import string
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from constraints.bitmask import Bitmask, allowed_ids
from constraints.matcher import Matcher
from constraints.vocabulary import Vocabulary

THE_END = "the end"
_OTHERS = "characters beyond ASCII"
# The most literals that are shown, and the most ranges of characters.
_FEW = 12
_MAX_RUNS = 12
_MAX_LITERAL_LEN = 40
# The most tokens that are searched for their first characters.
_MAX_READ_TOKENS = 4096
_TEXT = frozenset(map(ord, string.printable)) - frozenset(b"\x0b\x0c\r")
_NAMES = {string.digits: "a digit", string.ascii_lowercase: "a to z"}


class Expectation:
    """Describes masks of one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._first_bytes = np.array(
            [token[0] if token else 0 for token in vocabulary.tokens], dtype=np.uint8
        )
        self._byte_ids = byte_ids(vocabulary)

    def legal(self, matcher: Matcher) -> npt.NDArray[np.int64]:
        """The ids of the tokens that may follow."""
        row: Bitmask = np.zeros(self._vocabulary.num_words, dtype=np.int32)
        matcher.fill_mask(row)
        legal = allowed_ids(row)
        return legal[legal < len(self._vocabulary.tokens)]

    def words(self, matcher: Matcher, legal: npt.NDArray[np.int64]) -> tuple[str, ...]:
        """What may follow: literals, or classes of characters."""
        ends = (THE_END,) if matcher.is_complete else ()
        forced = b"" if ends else matcher.deterministic_suffix()
        # Several characters may share their first bytes.
        if forced.decode(errors="ignore"):
            return (_quoted(forced),)
        ids = legal[~np.isin(legal, self._vocabulary.end_ids)]
        first_bytes = np.unique(self._first_bytes[ids]).tolist()
        ascii_firsts = [byte for byte in first_bytes if byte < 0x80]
        leads = [byte for byte in first_bytes if byte >= 0x80]
        others = self._others(matcher, ids, leads) if leads else ()
        if len(ascii_firsts) <= _FEW:
            return (*self._literals(matcher, ascii_firsts), *others, *ends)
        return (*_classes(ascii_firsts, others), *ends)

    def _literals(self, matcher: Matcher, firsts: Sequence[int]) -> list[str]:
        """Characters with the text that must follow them; others as ranges."""
        literals = {byte: self._literal(matcher, byte) for byte in firsts}
        single = [byte for byte, literal in literals.items() if len(literal) == 1]
        longer = [_quoted(literal) for literal in literals.values() if len(literal) > 1]
        return [*_runs(single), *longer]

    def _literal(self, matcher: Matcher, byte: int) -> bytes:
        token_id = self._byte_ids.get(byte)
        # If tokens are counted, a longer one may be legal while its first byte is not.
        if token_id is None or matcher.num_legal((token_id,)) == 0:
            return bytes([byte])
        ahead = matcher.fork()
        ahead.advance(token_id)
        forced = b"" if ahead.is_complete else ahead.deterministic_suffix()
        return bytes([byte]) + forced

    def _others(
        self, matcher: Matcher, ids: npt.NDArray[np.int64], leads: Sequence[int]
    ) -> tuple[str, ...]:
        """The legal characters beyond ASCII, listed if they are few."""
        characters = self._characters(matcher, b"", leads) or self._read(ids)
        if 0 < len(characters) <= _FEW:
            return tuple(map(repr, sorted(characters)))
        return (_OTHERS,)

    def _characters(self, matcher: Matcher, begun: bytes, nexts: Sequence[int]) -> set[str]:
        """The characters that begin with these bytes, if they are few; empty if unknown."""
        found: set[str] = set()
        if len(nexts) > _FEW:
            return found
        for byte in nexts:
            token_id = self._byte_ids.get(byte)
            character = begun + bytes([byte])
            # If tokens are counted, a longer one may be legal while its first byte is not.
            if token_id is None or matcher.num_legal((token_id,)) == 0 or len(character) > 4:
                return set()
            more = {character.decode(errors="ignore")} - {""}
            if not more:
                ahead = matcher.fork()
                ahead.advance(token_id)
                firsts = np.unique(self._first_bytes[self.legal(ahead)]).tolist()
                more = self._characters(ahead, character, firsts)
            found |= more
            if not more or len(found) > _FEW:
                return set()
        return found

    def _read(self, ids: npt.NDArray[np.int64]) -> set[str]:
        """The first characters beyond ASCII of the tokens, if the tokens are not too many."""
        ids = ids[self._first_bytes[ids] >= 0x80]
        if len(ids) >= _MAX_READ_TOKENS:
            return set()
        texts = [self._vocabulary.tokens[each].decode(errors="ignore") for each in ids.tolist()]
        return {text[0] for text in texts if text}


def byte_ids(vocabulary: Vocabulary) -> dict[int, int]:
    """The single-byte tokens, by byte."""
    return {
        token[0]: token_id
        for token_id, token in reversed(list(enumerate(vocabulary.tokens)))
        if len(token) == 1
    }


def _classes(firsts: Sequence[int], others: tuple[str, ...]) -> tuple[str, ...]:
    missing = _TEXT.difference(firsts)
    if others == (_OTHERS,) and len(missing) <= _FEW:
        return (_any_but(sorted(missing)),)
    runs = _runs(firsts)
    if len(runs) > _MAX_RUNS:
        return (f"one of {len(firsts)} ASCII characters", *others)
    return (*runs, *others)


def _any_but(missing: Sequence[int]) -> str:
    if not missing:
        return "any character"
    return "any character but " + ", ".join(repr(chr(byte)) for byte in missing)


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
