"""What conditions mean for finished holes."""

import pytest

from client.query.conditions.evaluate import Finished, TokensUnknown, evaluate
from tests.client.query.conditions.clauses import term

HOLES = {
    "T": "cat. dog",
    "N": Finished(7, "07", 2),
    "F": Finished(0.5, "0.50", 3),
    "G": f"{10**45 + 1}",
    "L": Finished(["a", "b"], '["a", "b"]', 5),
    "B": True,
}


@pytest.mark.parametrize(
    ("clause", "truth"),
    [
        ("len(T) == 8", True),
        ("len(words(T)) == 2 and len(sentences(T)) == 2", True),
        ("'cat.' in words(T)", True),
        ("T == 'cat'", False),
        ("'dog' in T", True),
        ("T in ['cat. dog']", True),
        # A number has a value and a text.
        ("N == 7 and N == '07' and len(N) == 2", True),
        ("N in [7] and N in ['07']", True),
        ("N in ['7']", False),
        ("N in [7, 'x'] and N in ['07', 8] and N not in ['7', 8]", True),
        ("int(N) < 8 and N < 8 and N > F", True),
        ("len(tokens(N)) == 2", True),
        ("F == 0.5 and F < 0.51 and float(F) == 0.5", True),
        ("F in [0.5, 1]", True),
        # What is calculated with float(X) is exact, beside decimals of Python, too.
        ("float(F) + 0.1 == 0.6 and 0.1 * float(F) == 0.05 and F + float(F) == 1", True),
        # Of a range's numbers nobody looks at each.
        ("N in range(10**30) and len(T) - 9 not in range(10**30)", True),
        ("float(N) in range(8) and float(N) not in range(0, 8, 2)", True),
        ("int(G) == 10**45 + 1 and int(G) > 10**41 and int(G) - 1 == 10**45", True),
        ("int(T) == 3", False),
        ("int(T) != 3", False),
        ("not int(T) == 3", True),
        # Other values are Python's.
        ("len(L) == 2 and 'a' in L", True),
        ("L == ['a', 'b']", True),
        ("L[0] == 'a'", True),
        ("type(L) is list and type(N) is int", True),
        ("B and not not B", True),
        ("B is True", True),
    ],
)
def test_a_clause_of_finished_holes(clause: str, truth: bool) -> None:
    assert evaluate(term(clause, "TNFGLB"), HOLES) is truth


def test_tokens_that_nobody_counted_are_unknown() -> None:
    with pytest.raises(TokensUnknown):
        evaluate(term("len(tokens(T)) < 3", "T"), HOLES)
