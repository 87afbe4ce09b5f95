"""Searches a text for a schema's pattern (ECMA 262) with the engine, so as masks read it."""

from functools import lru_cache

from constraints.engine import GrammarLanguage
from constraints.errors import ConstraintError, Contradiction
from constraints.guiding.alphabet import byte_vocabulary
from constraints.regex.writing import search_grammar


def is_found(pattern: str, text: str) -> bool:
    """Whether the pattern matches somewhere in the text.

    Raises Malformed, NotEnforced, TooComplex, EngineFailed for what cannot be decided.
    """
    language = _language(pattern)
    if language is None:
        return False
    # A lone surrogate is a character that UTF-8 does not have.
    read = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    matcher = language.matcher()
    token_ids = list(read.encode())
    if matcher.num_legal(token_ids) < len(token_ids):
        return False
    matcher.follow(token_ids)
    return matcher.is_complete


def is_searchable(pattern: str) -> bool:
    """Whether it can be searched for."""
    try:
        _language(pattern)
    except ConstraintError:
        return False
    return True


@lru_cache(maxsize=64)
def _language(pattern: str) -> GrammarLanguage | None:
    """The texts that contain it; None: there are none."""
    try:
        grammar = search_grammar(pattern)
        return GrammarLanguage(byte_vocabulary(), grammar)
    except Contradiction:
        return None
