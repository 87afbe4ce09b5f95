"""Whether stop strings leave a pattern any text at all.

A search over masks cannot tell places apart that look alike, so it never sees all of `[ab]*`. Of
one pattern the engine itself can: by its intersection with the texts that no stop string cuts.
"""

import re

from constraints.errors import ConstraintError, Contradiction
from constraints.grammars.engine import HEADER, GrammarLanguage
from constraints.grammars.engine_messages import explain
from constraints.grammars.limits import Limits
from constraints.grammars.patterns import Chars, written_set
from constraints.guiding.bytewise import byte_vocabulary
from constraints.matcher import Language
from constraints.spec import StopRule

# A fifth of a pattern's own: this comes on top of a search that found nothing.
UNCUT_LIMITS = Limits(compile_fuel=1_000_000)
# What `regex.to_grammar` makes: its patterns have no slash.
_ONE_PATTERN = re.compile(rf"{re.escape(HEADER)}start: /(?P<pattern>[^/\n]*)/\n")


def leaves_nothing(language: Language, stops: StopRule) -> bool:
    """Whether it is certain that no text of the language ends before a stop string does.

    False of languages that are not of one pattern, and where the limits are met.
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
    """The grammar of the texts of a pattern that no stop string cuts. None: it is not of one."""
    one = isinstance(language, GrammarLanguage) and _ONE_PATTERN.fullmatch(language.grammar)
    if not one or not stops.strings:
        return None
    strings = "|".join(map(_literal, stops.strings))
    after = "+" if stops.kept else "*"
    without_stop_strings = f"/{one['pattern']}/ & ~/(?s:.)*(?:{strings})(?s:.){after}/"
    return f"{HEADER}start: UNCUT\nUNCUT: {without_stop_strings}\n"


def _literal(text: str) -> str:
    return "".join(written_set(Chars(((ord(char), ord(char)),))) for char in text)
