r"""Searches a text for a schema's pattern (ECMA 262), with the same meaning as in masks.

Uses the engine of masks. What it does not support (look-around, backreferences, word boundaries) is
rewritten for Python, where `\d`, `\w`, `\b` and `$` differ, and matched by our own automata, or if
they do not support it by `re`, which may take unlimited time on some texts.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from constraints.engine import LIMITS, GrammarLanguage, error_of
from constraints.errors import Contradiction, NotEnforced, TooComplex
from constraints.guiding.alphabet import byte_vocabulary
from constraints.regex.automaton import Automaton
from constraints.regex.dfa import matches
from constraints.regex.limits import OutOfReach
from constraints.regex.look_around import for_python
from constraints.regex.writing import search_grammar
from constraints.spec import Kind

_Finder = Callable[[str], bool]


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
        rewritten = for_python(pattern)
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
    language = GrammarLanguage(byte_vocabulary(), grammar, LIMITS[Kind.REGEX], error_of)

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
