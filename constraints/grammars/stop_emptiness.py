"""Proves that stop strings leave a pattern no text.

A search over masks cannot distinguish places with equal masks, so it never exhausts `[ab]*`. For a
single pattern the engine itself can: it intersects it with the texts that no stop string truncates.
"""

import re

from constraints.errors import ConstraintError, Contradiction
from constraints.grammars.engine import HEADER, GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import Limits
from constraints.grammars.patterns import Chars, written_set
from constraints.guiding.alphabet import byte_vocabulary
from constraints.matcher import Language
from constraints.spec import StopRule

# A fifth of a pattern's own limit, since this follows a search that found nothing.
UNCUT_LIMITS = Limits(compile_fuel=1_000_000)
# The output of `regex.to_grammar`; its patterns contain no slash.
_ONE_PATTERN = re.compile(rf"{re.escape(HEADER)}start: /(?P<pattern>[^/\n]*)/\n")


def is_empty_under_stops(language: Language, stops: StopRule) -> bool:
    """Whether it is certain that every text of the language contains a stop string before its end.

    False for languages that are not a single pattern, and where a limit is reached.
    """
    grammar = grammar_without_stops(language, stops)
    if grammar is None:
        return False
    try:
        GrammarLanguage(byte_vocabulary(), grammar, UNCUT_LIMITS, explain)
    except Contradiction:
        return True
    except ConstraintError:
        return False
    return False


def grammar_without_stops(language: Language, stops: StopRule) -> str | None:
    """The grammar of a pattern's texts that no stop string truncates. None: not a pattern."""
    one = isinstance(language, GrammarLanguage) and _ONE_PATTERN.fullmatch(language.grammar)
    if not one or not stops.strings:
        return None
    strings = "|".join(map(_literal, stops.strings))
    without_stop_strings = f"/{one['pattern']}/ & ~/(?s:.)*(?:{strings})(?s:.)+/"
    return f"{HEADER}start: WITHOUT_STOPS\nWITHOUT_STOPS: {without_stop_strings}\n"


def _literal(text: str) -> str:
    return "".join(written_set(Chars(((ord(char), ord(char)),))) for char in text)
