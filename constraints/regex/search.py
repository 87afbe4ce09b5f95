r"""Searches a text for a schema's pattern (ECMA 262), with the same meaning as in masks.

Uses the engine of masks, for what it does not support (look-around, word boundaries) our own
automata, and for references back `re`, which may take unlimited time on some texts.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError, Contradiction, NotEnforced, TooComplex
from constraints.guiding.alphabet import byte_vocabulary
from constraints.regex.dfa import Automaton, automaton_of
from constraints.regex.limits import OutOfReach
from constraints.regex.look_around import around
from constraints.regex.syntax import Dialect, parse
from constraints.regex.writing import search_grammar

_Finder = Callable[[str], bool]


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises Malformed, NotEnforced, EngineFailed for what cannot be decided.
    """
    # A lone surrogate is a character that UTF-8 does not have.
    return _finder(pattern)(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))


def is_bounded(pattern: str) -> bool:
    """Whether no search for it takes unlimited time; not of what is no pattern."""
    try:
        return not isinstance(_without_re(pattern), ConstraintError)
    except ConstraintError:
        return False


def _finder(pattern: str) -> _Finder:
    found = _without_re(pattern)
    if not isinstance(found, ConstraintError):
        return found
    compiled = _compiled(pattern, found)
    return lambda text: compiled.search(text) is not None


@lru_cache(maxsize=64)
def _without_re(pattern: str) -> _Finder | ConstraintError:
    try:
        return _by_engine(search_grammar(pattern))
    except Contradiction:
        return lambda text: False
    except (NotEnforced, TooComplex) as error:
        refusal: ConstraintError = error
    try:
        return _by_automaton(automaton_of(around(parse(pattern, Dialect.ECMA))))
    except (NotEnforced, OutOfReach):
        return refusal.with_traceback(None)


# What Python spells differently: references back, names of groups, and edges.
_DIFFERENT = re.compile(
    r"\\k<(?P<name>[^>]*)>|\\(?P<number>[1-9])|(?P<group>\(\?<(?![=!]))|(?P<edge>[$^])"
    r"|\\.|\[(?:\\.|[^\]\\])*\]",
    re.DOTALL,
)


def _compiled(pattern: str, refusal: ConstraintError) -> re.Pattern[str]:
    try:
        return re.compile(_DIFFERENT.sub(_for_python, pattern), re.ASCII)
    except (re.error, OverflowError):
        raise refusal from None


def _for_python(found: re.Match[str]) -> str:
    if found["group"]:
        return "(?P<"
    if found["edge"]:
        return r"\A" if found["edge"] == "^" else r"\Z"
    # A group that has not matched yet counts as empty.
    if found["name"]:
        return f"(?({found['name']})(?P={found['name']}))"
    return rf"(?({found['number']})\{found['number']})" if found["number"] else found[0]


def _by_engine(grammar: str) -> _Finder:
    language = GrammarLanguage(byte_vocabulary(), grammar)

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
