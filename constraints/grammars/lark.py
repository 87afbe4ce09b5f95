"""Grammars in llguidance's dialect of Lark."""

from constraints.grammars.engine import HEADER


def to_grammar(text: str) -> str:
    """The grammar with our options. Raises Malformed, NotEnforced."""
    return HEADER + text
