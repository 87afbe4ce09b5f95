"""Conversations that are too long, cut at their beginning: `truncation` "auto"."""

from collections.abc import Awaitable, Callable, Sequence

from router.http.conversation import Turn

_LEADING = ("system", "developer")


async def fit(
    turns: Sequence[Turn], max_len: int, count: Callable[[Sequence[Turn]], Awaitable[int]]
) -> Sequence[Turn]:
    """The longest end of the conversation that has at most `max_len` tokens as a prompt.

    What the system says first stays, and what is left begins with a turn of the user's, since many
    templates want one there. If nothing fits, the last such end. `count` gives a prompt's length.
    """
    head_len = next((i for i, turn in enumerate(turns) if turn.role not in _LEADING), len(turns))
    head = turns[:head_len]
    later = [i for i in range(head_len + 1, len(turns)) if turns[i].role == "user"]
    starts = [head_len, *later]
    low, high = 0, len(starts) - 1
    # Most conversations fit as they are; among the others, each shorter end is a shorter prompt.
    middle = low
    while low < high:
        if await count([*head, *turns[starts[middle] :]]) <= max_len:
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    return [*head, *turns[starts[low] :]]
