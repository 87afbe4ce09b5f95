"""Steps of bytes: a byte stands for all that do the same, and nothing is missed for that."""

import itertools
import random

import pytest

from tests.constraints.where.large import compiled


@pytest.mark.parametrize(
    "written",
    [
        'X == "abc"',
        'X in ["ab", "ac", "é"]',
        'len(words(X)) > 3 and "a" not in X',
        'stops_at(X, ".") and len(X) < 9',
        r'regex(X, r"\w{3} fox") and ends_with(X, "x")',
        'X == "é\U0001f600"',
    ],
)
def test_what_is_told_of_bytes_is_what_each_of_them_does(written: str) -> None:
    language = compiled(written)
    steps, live = language.steps, language.coaccessible_slacks
    draw = random.Random(0)
    for _ in range(20):
        packed, counts = language.table.start, [0] * len(language.counter_grid.counters)
        for _ in range(12):
            after = {byte: steps.read(bytes([byte]), packed, counts) for byte in range(256)}
            alive = [b for b, (to, held) in after.items() if to and steps.is_alive(live, to, held)]

            assert steps.only_byte(live, packed, counts) == (alive[0] if len(alive) == 1 else None)
            assert steps.goes_on(live, packed, counts) == bool(alive)

            if not alive:
                break
            packed, counts = after[draw.choice(alive)]


def test_several_bytes_read_at_once_lead_where_they_do_one_by_one() -> None:
    language = compiled('len(words(X)) > 2 and len(X) < 20 and "b" in X')
    steps, start = language.steps, (language.table.start, [0] * len(language.counter_grid.counters))
    for text in map("".join, itertools.product("ab ", repeat=4)):
        one_by_one = start
        for letter in text.encode():
            one_by_one = steps.read(bytes([letter]), *one_by_one)
        assert steps.read(text.encode(), *start) == one_by_one
