"""Vocabularies of a few tokens."""

from collections.abc import Sequence

from llguidance import LLTokenizer

from constraints.vocabulary import Vocabulary


def vocabulary_of(tokens: Sequence[bytes], end_ids: Sequence[int]) -> Vocabulary:
    """A vocabulary of these very tokens; the engine of `where` asks nothing else of it."""
    return Vocabulary(tuple(tokens), tuple(end_ids), "of a test", LLTokenizer("byte"))
