"""Conditions of query programs on a real server: what was asked for is what comes."""

from dataclasses import dataclass
from random import Random

import pytest

from client.query import NotSatisfied, Unsatisfiable, run_sync
from tests.client.query.conditions.clauses import Made, random_program
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow


def value_of(server: RunningServer, hole: str, where: str, **names: object) -> object:
    """What X is after one sampled run."""
    sampled = "sample(temperature=1.5, seed=3, max_tokens=24)"
    program = f'{sampled}\n    "The cat and the dog: {hole}"\nwhere\n    {where}\n'
    return run_sync(program, names, model=server.url)["X"]


# The first five are returned by others against their conditions.
@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ('"to" in X and len(TOKENS(X)) < 8', lambda text: "to" in text),
        ('X in ["aa", "bb"] and not X in ["aa"]', lambda text: text == "bb"),
        ('not REGEX(X, "[a-z]+") and len(TOKENS(X)) < 5', lambda text: not text.isalpha()),
        (
            'REGEX(X, "(aa|bb)+") and len(X) < 5 and len(X) > 3',
            lambda text: text in ("aaaa", "aabb", "bbaa", "bbbb"),
        ),
        ("len(X) > 40 and len(words(X)) == 3", lambda text: len(text.split()) == 3),
        ('STOPS_AT(X, ".")', lambda text: "." not in text[:-1]),
        ('STOPS_BEFORE(X, "a")', lambda text: "a" not in text),
        (
            'stops_at(X, "e") and stops_before(X, "o", "a")',
            lambda text: "e" not in text[:-1] and not {"o", "a"} & set(text),
        ),
        (
            "X.count('e') % 2 == 0 and len(X) < 9",
            lambda text: text.count("e") % 2 == 0 and len(text) < 9,
        ),
        (
            '"fox" in X.lower() and X.upper().startswith("A") and "e" not in X.lower()',
            lambda text: "fox" in text.lower() and text[0] in "aA" and "e" not in text.lower(),
        ),
    ],
)
def test_what_comes_satisfies(server: RunningServer, where: str, holds: object) -> None:
    assert callable(holds)
    assert holds(value_of(server, "[X]", where))


def test_what_nothing_satisfies_is_told(server: RunningServer) -> None:
    with pytest.raises(Unsatisfiable):
        value_of(server, "[X]", "len(TOKENS(X)) < 3 and len(TOKENS(X)) > 5")
    with pytest.raises(Unsatisfiable):
        value_of(server, "[X]", 'REGEX(X, "a+") and "b" in X')


@dataclass
class Cat:
    name: str
    age: int | None


@pytest.mark.parametrize(
    ("hole", "where", "kind"),
    [
        ("[X: int]", "10 <= X < 20 and X % 2 == 0", int),
        ("[X: float]", "0.25 <= X <= 0.5", float),
        ("[X: bool]", "not X", bool),
        ("[X: kinds]", "X != 'cat'", str),
        ("[X: Cat]", "len(tokens(X)) < 24 and len(X.name) < 40", Cat),
        ("[X]", "type(X) is int and X > 1000", int),
    ],
)
def test_holes_have_types(server: RunningServer, hole: str, where: str, kind: type) -> None:
    made = value_of(server, hole, where, Cat=Cat, kinds=["cat", "dog"])

    assert type(made) is kind
    assert (
        kind is not int or made in (10, 12, 14, 16, 18) or (isinstance(made, int) and made > 1000)
    )
    assert kind is not float or (isinstance(made, float) and 0.25 <= made <= 0.5)
    assert kind is not str or made == "dog"


def test_random_programs_keep_their_conditions(server: RunningServer) -> None:
    num_finished = 0
    for seed in range(5000, 5010):
        program = random_program(Random(seed))
        if "tokens(" in program.text:
            continue
        try:
            result = run_sync(program.text, model=server.url)
        except (Unsatisfiable, NotSatisfied):
            continue
        texts = {span.hole: result.prompt[span.start : span.end] for span in result.spans}
        made = {name: Made(result[name], texts[name], 0) for name in texts}
        assert program.broken(made) == [], program.text
        num_finished += 1
    assert num_finished > 3


def test_lengths_that_sum_up_over_holes_take_one_request_for_each(server: RunningServer) -> None:
    text = 'argmax\n    "A fox[A] and a goat[B]."\nwhere len(A) + len(B) == 9 and 2 * len(A) > 9'
    result = run_sync(text, model=server.url)

    lengths = [len(str(result[name])) for name in "AB"]
    assert (sum(lengths), lengths[0] > 4) == (9, True)
    assert [row.hole for row in result.requests] == ["A", "B"]


@pytest.mark.parametrize(
    "text",
    [
        '"[X]"',
        '"{str()}[X]" where len(X) < 9',
        'beam(2)\n    "[X]" where len(X) < 9',
        '"[X]"\ndistribute X over ["a", "b"]',
    ],
)
def test_a_program_may_begin_with_a_hole(server: RunningServer, text: str) -> None:
    """The bundled model has no token that begins texts: it goes on behind one that ends them."""
    result = run_sync(text, model=server.url)

    assert result["X"]


@pytest.mark.parametrize("stops", ["cut", "exact"])
def test_a_dropped_phrase_is_among_the_tokens_of_its_hole(
    server: RunningServer, stops: str
) -> None:
    """A hole's tokens are what the model wrote, now and for the holes behind it."""
    result = run_sync(
        f'argmax(stops="{stops}")\n'
        '    "Q: Where does Doric Caldman live?\\nA:[X]" where stops_before(X, "lives in")\n'
        '    "[Y]" where len(tokens(Y)) == len(tokens(X))',
        model=server.url,
    )

    assert result["X"] == " Doric Caldman "
    written = result.requests[0].usage.num_output_tokens
    assert len(" Doric Caldman ".split()) < 4 < written
    assert result.requests[1].usage.num_output_tokens in (written, written + 1)
