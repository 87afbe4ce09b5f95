"""A run as a stream of partial states, for display."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from client.query.running.request_sender import OnState
from client.query.running.results import Result, State

Run = Callable[[OnState], Awaitable[tuple[Result[object], ...]]]


async def watched(run: Run) -> AsyncGenerator[State | Result[object], None]:
    """The states of all traces, then the results.

    A slow reader misses intermediate states, but never the last one of a trace. Closing the
    generator cancels the run.
    """
    latest: dict[int, State] = {}
    has_news = asyncio.Event()

    def take(state: State) -> None:
        latest[state.trace] = state
        has_news.set()

    task = asyncio.ensure_future(run(take))
    task.add_done_callback(lambda _: has_news.set())
    try:
        while not (task.done() and not latest):
            await has_news.wait()
            has_news.clear()
            states = tuple(latest.values())
            latest.clear()
            for state in states:
                yield state
            if task.done():
                has_news.set()
        for result in task.result():
            yield result
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
