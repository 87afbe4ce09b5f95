"""Conversations that are too long, cut at their beginning."""

import tracemalloc
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.http.conversation import Turn
from router.http.responses.routes import fit

TURNS = st.builds(
    Turn, st.sampled_from(["system", "developer", "user", "assistant"]), st.text("a", max_size=9)
)


async def count(turns: Sequence[Turn]) -> int:
    """One token for each turn and letter."""
    return sum(1 + len(turn.text) for turn in turns)


def ends_of(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Every end that `fit` may choose, the longest first, found by looking at each."""
    leading = ("system", "developer")
    head_len = 0
    while head_len < len(turns) and turns[head_len].role in leading:
        head_len += 1
    head = list(turns[:head_len])
    return [
        head + list(turns[start:])
        for start in range(head_len, max(len(turns), head_len + 1))
        if start == head_len or turns[start].role == "user"
    ]


@given(st.lists(TURNS, min_size=1, max_size=12), st.integers(0, 80))
async def test_the_longest_end_that_fits_is_kept(turns: list[Turn], max_len: int) -> None:
    ends = ends_of(turns)
    fitting = [end for end in ends if await count(end) <= max_len]

    kept = await fit(turns, max_len, count)

    assert list(kept) == (fitting[0] if fitting else ends[-1])


async def test_a_conversation_that_fits_is_counted_once() -> None:
    counted = []

    async def counting(turns: Sequence[Turn]) -> int:
        counted.append(len(turns))
        return await count(turns)

    turns = [Turn(role, "a") for role in ("user", "assistant") * 50]
    assert list(await fit(turns, 1000, counting)) == turns
    assert counted == [100]


async def test_few_lengths_are_looked_at() -> None:
    num_counted = 0

    async def counting(turns: Sequence[Turn]) -> int:
        nonlocal num_counted
        num_counted += 1
        return await count(turns)

    turns = [Turn(role, "a") for role in ("user", "assistant") * 500]
    kept = await fit(turns, 100, counting)

    assert len(kept) == 50
    assert num_counted <= 11


async def test_what_is_cut_is_not_copied_for_every_end() -> None:
    turns = [Turn("user", "a")] * 20_000
    tracemalloc.start()
    await fit(turns, 100, count)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 10_000_000
