"""Regular expressions as terminals of the engine's Lark dialect."""

from llguidance import regex_to_lark

from constraints.grammars.engine import HEADER


def to_grammar(pattern: str) -> str:
    """The grammar of the texts that match the whole pattern. Raises Malformed, NotEnforced."""
    return f"{HEADER}start: /{translate(pattern)}/\n"


def translate(pattern: str) -> str:
    """The pattern in the engine's syntax, to stand between slashes. Raises Malformed."""
    return regex_to_lark(pattern, "")
