"""Restricts a language to the texts that no stop string truncates.

A search that sees stop strings only through masks meets them again and again. If the engine can
exclude them from the language, its shortest text contains none of them.
"""

import json

from constraints.errors import ConstraintError, Contradiction
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.stop_emptiness import UNCUT_LIMITS, grammar_without_stops
from constraints.matcher import Language
from constraints.spec import StopRule
from constraints.where.compile import compile_without_stops
from constraints.where.engine import WhereLanguage
from constraints.where.limits import OutOfReach

# The most strings, and their length, for a pattern: more take the engine seconds to exclude.
_MAX_STRINGS = 8
_MAX_STRINGS_LEN = 128


def without_stop_strings(language: Language, stops: StopRule) -> Language | None:
    """The language of the texts without stop strings before their end. None: not available.

    Raises Contradiction if it is certain that there is no such text.
    """
    try:
        if isinstance(language, WhereLanguage):
            found = compile_without_stops(language, stops.strings)
        else:
            return _grammar_language(language, stops)
    except (ConstraintError, OutOfReach):
        return None
    if found is None:
        raise stop_contradiction(stops)
    return found


def stop_contradiction(stops: StopRule) -> Contradiction:
    """The error for a language whose every text is truncated by stop strings or stop tokens."""
    return Contradiction(
        "every text that satisfies the constraint meets one of "
        f"{listed_stops(stops)} before its end",
        stops.strings,
    )


def listed_stops(stops: StopRule) -> str:
    """The stop strings for an error message; the stop tokens if there are none."""
    quoted = ", ".join(json.dumps(string, ensure_ascii=False) for string in stops.strings)
    return f"the stop strings {quoted}" if quoted else "the stop tokens"


def _grammar_language(language: Language, stops: StopRule) -> Language | None:
    if not isinstance(language, GrammarLanguage) or _are_many(stops.strings):
        return None
    grammar = grammar_without_stops(language, stops)
    if grammar is None:
        return None
    return GrammarLanguage(
        language.vocabulary, grammar, UNCUT_LIMITS, explain, hints=language.hints
    )


def _are_many(strings: tuple[str, ...]) -> bool:
    return len(strings) > _MAX_STRINGS or sum(map(len, strings)) > _MAX_STRINGS_LEN
