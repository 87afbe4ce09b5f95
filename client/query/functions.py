"""Queries as Python functions: what `@query` and `F` make.

    @query                                   f(x)          what it returns, or a Result
    async def f(x: str) -> str: ...          f.run(x)      its Result, awaited
    @query                                   f.run_sync(x)
    def g(x: str) -> str: ...                f.using(decoder=sample(4)).run_all(x)

One that is defined by `def` is called without await, where no event loop runs; each can be run both
ways. In a program `[X: f]` and `[X: f(x)]` take either.
"""

from dataclasses import replace
from typing import Generic, ParamSpec, Self, TypeVar, Unpack, cast

from client.query.execution import Choices, RunOptions, execute
from client.query.program import Program
from client.query.running.results import Result
from client.query.waiting import wait_for

P = ParamSpec("P")
R = TypeVar("R")


class Query(Generic[P, R]):
    """A query that can be called. Frozen; a call owns all that it makes."""

    def __init__(self, program: Program, choices: Choices) -> None:
        self._program = program
        self._choices = choices
        self.__name__ = program.name

    @property
    def program(self) -> Program:
        """What a call runs."""
        return self._program

    def using(self, **options: Unpack[RunOptions]) -> Self:
        """The same query with another model, decoder or trace file."""
        return type(self)(self._program, replace(self._choices, **options))

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """The result; the first of a decoder that makes several."""
        return (await self.run_all(*args, **kwargs))[0]

    async def run_all(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Result[R], ...]:
        """All results of the decoder."""
        results = await execute(self._program, self._choices, args, kwargs)
        return cast("tuple[Result[R], ...]", results)

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """`run`, where no event loop runs."""
        return wait_for(self.run(*args, **kwargs), "await run(...)")

    def run_all_sync(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Result[R], ...]:
        """`run_all`, where no event loop runs."""
        return wait_for(self.run_all(*args, **kwargs), "await run_all(...)")

    def _value(self, result: Result[R]) -> R:
        # Without a return statement R is the Result itself: see the overloads of `query`.
        return result.value if self._program.returns else cast("R", result)


class AsyncQuery(Query[P, R]):
    """A query defined by `async def`."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the query returns; its Result if it has no return statement."""
        return self._value(await self.run(*args, **kwargs))


class SyncQuery(Query[P, R]):
    """A query defined by `def`, or by F."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What the query returns; its Result if it has no return statement."""
        return self._value(wait_for(self.run(*args, **kwargs), "await run(...), or async def"))
