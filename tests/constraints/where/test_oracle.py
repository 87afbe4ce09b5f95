"""The oracle against the evaluator and against plain enumeration of texts and tokens."""

import itertools
import random

import pytest

from constraints.where.evaluate import holds
from constraints.where.parser import parse
from tests.constraints.cases import accepts
from tests.constraints.where.expressions import END_ID, EXPRESSIONS, TOKENS
from tests.constraints.where.oracle import Oracle, characters

ALPHABET = ("a", "b", " ", ".", "\n", "1", "-", "ä", "\u3000")


@pytest.mark.parametrize("written", EXPRESSIONS)
def test_an_output_is_complete_where_the_evaluator_says_so(written: str) -> None:
    expression = parse(written)
    oracle = Oracle(expression, TOKENS, (END_ID,))
    draw = random.Random(written)
    token_ids = {token.decode(): index for index, token in enumerate(TOKENS) if _is_text(token)}
    texts = [ids for length in range(4) for ids in itertools.product(ALPHABET, repeat=length)]
    texts += [tuple(draw.choices(sorted(token_ids), k=draw.randint(1, 6))) for _ in range(100)]
    for pieces in texts:
        tokens = [index for piece in pieces for index in _ids(piece, token_ids)]
        wanted = accepts(expression, "".join(pieces), len(tokens))
        assert oracle.is_complete(tokens) == wanted, pieces


def test_what_is_legal_is_what_enumeration_completes() -> None:
    tokens = (b"a", b"b", b"ab", b" ", b"\xc3", b"\xa4", "ä".encode(), b"")
    for written in (
        '"ab" in X and len(tokens(X)) < 4',
        'len(words(X)) == 2 and "ä" in X',
        'not (len(tokens(X)) > 2 or "a" in X)',
        'stops_at(X, "ab") and len(X) != 2',
    ):
        expression = parse(written)
        oracle = Oracle(expression, tokens, (7,))
        good = {
            ids
            for length in range(5)
            for ids in itertools.product(range(7), repeat=length)
            if _is_text(b"".join(tokens[index] for index in ids))
            and holds(expression, b"".join(tokens[index] for index in ids).decode(), length)
        }
        prefixes = {ids[:cut] for ids in good for cut in range(len(ids) + 1)}
        for prefix in prefixes:
            max_len = 4 - len(prefix)
            wanted = {ids[len(prefix)] for ids in good if ids[: len(prefix)] == prefix != ids}
            wanted |= {7} if prefix in good else set()
            assert oracle.legal(prefix, max_len=max_len) == wanted, (written, prefix)
            shortest = min(len(ids) for ids in good if ids[: len(prefix)] == prefix)
            assert oracle.shortest_len(prefix, 4) == shortest - len(prefix)


def _is_text(data: bytes) -> bool:
    split = characters(data)
    return split is not None and not split[1]


def _ids(piece: str, token_ids: dict[str, int]) -> list[int]:
    return [token_ids[piece]] if piece in token_ids else list(piece.encode())
