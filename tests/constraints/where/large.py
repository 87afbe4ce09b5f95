"""Expressions over a vocabulary with many-byte and split-character tokens, compiled."""

from constraints.token_trie import TokenTrie
from constraints.where.compile import compile_where
from constraints.where.engine import WhereLanguage
from constraints.where.parser import parse
from tests.constraints.where.expressions import END_ID, TOKENS
from tests.constraints.where.vocabularies import vocabulary_of

LARGE = vocabulary_of(TOKENS, (END_ID,))
LARGE_WALK = TokenTrie(LARGE)


def compiled(written: str) -> WhereLanguage:
    """The language of an expression over LARGE."""
    return compile_where(parse(written), LARGE, LARGE_WALK)
