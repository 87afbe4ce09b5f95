"""The texts of a language that no stop string cuts.

A search that knows of the stop strings by masks alone walks into them again and again; where the
engine can leave them out of the language, its own shortest text is one that meets none of them.
"""

from constraints.errors import ConstraintError
from constraints.grammars.engine import GrammarLanguage
from constraints.grammars.messages import explain
from constraints.grammars.stop_proof import UNCUT_LIMITS, uncut_grammar
from constraints.matcher import Language
from constraints.spec import StopRule
from constraints.where.compile import without_phrases
from constraints.where.engine import WhereLanguage
from constraints.where.limits import OutOfReach

# Of a pattern: more strings, or longer ones, take the engine seconds to leave out.
_MAX_STRINGS, _MAX_STRINGS_LEN = 8, 128


def uncut(language: Language, stops: StopRule) -> Language | None:
    """The language without what the stop strings cut. None: there is no such text, or none knows.

    Fewer texts than may end an output: one may also end with a stop string.
    """
    try:
        if isinstance(language, WhereLanguage):
            return without_phrases(language, stops.strings)
        if not isinstance(language, GrammarLanguage) or _are_many(stops.strings):
            return None
        grammar = uncut_grammar(language, stops)
        if grammar is None:
            return None
        return GrammarLanguage(
            language.vocabulary, grammar, UNCUT_LIMITS, explain, hints=language.hints
        )
    except (ConstraintError, OutOfReach):
        return None


def _are_many(strings: tuple[str, ...]) -> bool:
    return len(strings) > _MAX_STRINGS or sum(map(len, strings)) > _MAX_STRINGS_LEN
