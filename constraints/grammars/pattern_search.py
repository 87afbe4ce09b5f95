r"""Searches a text for a schema's pattern (ECMA 262), with the same meaning as in masks.

Uses the engine of masks. What it does not support (look-around, backreferences, word boundaries) is
rewritten for Python, where `\d`, `\w`, `\b` and `$` differ, and matched by the automata of `where`,
or if they do not support it by `re`, which may take unlimited time on some texts.
"""

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from constraints.errors import Contradiction, NotEnforced, TooComplex
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import LIMITS
from constraints.grammars.pattern_escapes import Dialect
from constraints.grammars.pattern_parser import PatternParser
from constraints.grammars.patterns import Chars
from constraints.grammars.regex import search_grammar
from constraints.guiding.alphabet import byte_vocabulary
from constraints.spec import Kind
from constraints.where.automata import Automaton
from constraints.where.code_points import NUM_CODE_POINTS, Ranges
from constraints.where.limits import OutOfReach
from constraints.where.regex_dfa import matches

_Finder = Callable[[str], bool]
_GROUP = re.compile(r"\(\?<(?![=!])(?P<name>[^>]*)>|\((?:\?(?:<?[=!]|[a-z-]*[:)]))?")
_REFERENCE = re.compile(r"\\(?:k<(?P<name>[^>]*)>|(?P<number>[1-9][0-9]*))")


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises Malformed, NotEnforced, EngineFailed for what cannot be decided.
    """
    # A lone surrogate is a character that UTF-8 does not have.
    return _finder(pattern)(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


@lru_cache(maxsize=64)
def _finder(pattern: str) -> _Finder:
    try:
        return _by_engine(search_grammar(pattern))
    except Contradiction:
        return lambda text: False
    except (NotEnforced, TooComplex):
        rewritten = _Rewriter(pattern, Dialect.ECMA).rewritten()
    try:
        return _by_automaton(matches(rf"(?s:.*)(?:{rewritten})(?s:.*)"))
    except OutOfReach:
        compiled = _compiled(rewritten)
    return lambda text: compiled.search(text) is not None


def _compiled(rewritten: str) -> re.Pattern[str]:
    try:
        return re.compile(rewritten)
    except (re.error, OverflowError) as error:
        raise NotEnforced(f"a pattern cannot be read: {error}") from None


def _by_engine(grammar: str) -> _Finder:
    language = GrammarLanguage(byte_vocabulary(), grammar, LIMITS[Kind.REGEX], explain)

    def find(text: str) -> bool:
        matcher = language.matcher()
        token_ids = list(text.encode())
        if matcher.num_legal(token_ids) < len(token_ids):
            return False
        matcher.follow(token_ids)
        return matcher.is_complete

    return find


def _by_automaton(automaton: Automaton) -> _Finder:
    def find(text: str) -> bool:
        state = 0
        for char in text:
            state = int(automaton.steps[state, automaton.partition.label_of(ord(char))])
        return bool(automaton.accepts[state])

    return find


class _Rewriter(PatternParser):
    """Rewrites a pattern of ECMA 262 in Python's syntax, item by item."""

    def rewritten(self) -> str:
        """The same pattern for `re.search`. Raises Malformed, NotEnforced."""
        pieces = []
        while self._at < len(self._text):
            pieces.append(self._item())
        return "".join(pieces)

    def _item(self) -> str:
        start = self._at
        if self._repeat_bounds(start) is not None:
            return self._text[start : self._at]
        char = self._peek()
        if char == "(":
            return self._opening()
        found = _REFERENCE.match(self._text, start)
        if found:
            self._at = found.end()
            name = found["name"] or found["number"]
            # A group that has not matched yet counts as empty.
            return f"(?({name})(?P={name}))" if found["name"] else rf"(?({name})\{name})"
        self._at += 1
        match char:
            case "|" | ")":
                return char
            case "^" | "$":
                return r"\A" if char == "^" else r"\Z"
            case "\\" if self._peek() in ("b", "B"):
                self._at += 1
                return rf"(?a:\{self._text[self._at - 1]})"
            case "\\":
                read = self._class_or_code(start)
                return _written(read if isinstance(read, Chars) else Chars(((read, read),)))
            case "[":
                return _written(self._set(start))
            case ".":
                return _written(self._dot())
        return _written(Chars(((ord(char), ord(char)),)))

    def _opening(self) -> str:
        found = _GROUP.match(self._text, self._at)
        assert found is not None, "a parenthesis is a group by itself"
        self._at = found.end()
        return found[0] if found["name"] is None else f"(?P<{found['name']}>"

    def _add_class(self, chars: Chars, ranges: list[tuple[int, int]], named: list[str]) -> None:
        ranges.extend(_ranges(chars))


def _written(chars: Chars) -> str:
    inner = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in _ranges(chars))
    return f"[{inner}]" if inner else "(?!)"


def _ranges(chars: Chars) -> Ranges:
    """The characters of a set, in order."""
    members = list(chars.ranges)
    for name in chars.named:
        members.extend(_category(name.removeprefix(r"\p{").removesuffix("}")))
    if not chars.negated:
        return tuple(sorted(members))
    rest = []
    begin = 0
    for first, last in sorted(members):
        if begin < first:
            rest.append((begin, first - 1))
        begin = max(begin, last + 1)
    return (*rest, (begin, NUM_CODE_POINTS - 1)) if begin < NUM_CODE_POINTS else tuple(rest)


@lru_cache(maxsize=32)
def _category(name: str) -> Ranges:
    """The characters of one of Unicode's general categories, such as L and Lu."""
    ranges: list[tuple[int, int]] = []
    for code in range(sys.maxunicode + 1):
        if unicodedata.category(chr(code)).startswith(name):
            first = ranges.pop()[0] if ranges and ranges[-1][1] == code - 1 else code
            ranges.append((first, code))
    if not ranges:
        raise NotEnforced(f"`\\p{{{name}}}` is not known beside what looks around")
    return tuple(ranges)
