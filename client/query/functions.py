"""Queries as Python functions: the results of `@query` and `F`.

    @query                                   f(x)          what it returns, or a Result
    async def f(x: str) -> str: ...          f.run(x)      its Result, awaited
    @query                                   f.run_sync(x)
    def g(x: str) -> str: ...                f.using(decoder=sample(4)).run_all(x)
                                             f.watch(x)    its partial states

A query defined by `def` is called without await, outside of an event loop; `run` and `run_sync`
work for both. A query defined in a class is a method: the object is the first argument. In a
program `[X: f]` and `[X: f(x)]` accept both.
"""

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from functools import update_wrapper, wraps
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack, cast, overload

from client.query.api import RunOptions, choices_of, execute, wait_for
from client.query.program import Program
from client.query.reading.reader import read_function, read_template
from client.query.running.request_sender import watched
from client.query.running.results import Result, State


def bound(program: Program, instance: object) -> Program:
    """The bound program, with one parameter less."""

    def body(context: object, *arguments: object, **keywords: object) -> Any:
        return program.body(context, instance, *arguments, **keywords)

    def clause(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if function is None:
            return None

        @wraps(function)
        def asked(*arguments: object, **keywords: object) -> Any:
            return function(instance, *arguments, **keywords)

        return asked

    return replace(
        program,
        parameters=program.parameters[1:],
        body=wraps(program.body)(body),
        decoder=clause(program.decoder),
        model=clause(program.model),
    )


P = ParamSpec("P")
Q = ParamSpec("Q")
# The class or object of a method.
OwnerT = TypeVar("OwnerT")
# The type that a call returns, and the one of the program: equal, or Result and None.
R = TypeVar("R")
ValueT = TypeVar("ValueT")


class Query(Generic[P, R, ValueT]):
    """A callable query. Immutable; each call has its own state."""

    # The decorated function, as with functools.wraps.
    __wrapped__: Callable[..., object]

    def __init__(
        self,
        program: Program,
        choices: RunOptions,
        function: Callable[..., object] | None = None,
    ) -> None:
        """`function`: the decorated one, whose name, module etc. are copied."""
        self._program = program
        self._choices = choices
        self._function = function
        self.__name__ = self.__qualname__ = program.name
        self.__signature__ = _signature(program, function)
        if function is not None:
            # Attributes of the function are not copied.
            update_wrapper(cast("Callable[..., object]", self), function, updated=())

    def __repr__(self) -> str:
        return f"<query {self._program.name}({', '.join(self._program.parameters)})>"

    @property
    def program(self) -> Program:
        """The program that a call runs."""
        return self._program

    def using(self, **options: Unpack[RunOptions]) -> Self:
        """The same query with another model, decoder or trace file."""
        return type(self)(self._program, choices_of(options, self._choices), self._function)

    async def run(self, *args: P.args, **kwargs: P.kwargs) -> Result[ValueT]:
        """The result; the first one if the decoder makes several."""
        return (await self.run_all(*args, **kwargs))[0]

    async def run_all(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Result[ValueT], ...]:
        """All results of the decoder."""
        results = await execute(self._program, self._choices, args, kwargs)
        return cast("tuple[Result[ValueT], ...]", results)

    async def watch(
        self, *args: P.args, **kwargs: P.kwargs
    ) -> AsyncGenerator[State | Result[ValueT], None]:
        """The partial states of a run, then its results."""
        states = watched(
            lambda on_state: execute(self._program, self._choices, args, kwargs, on_state)
        )
        async with aclosing(states):
            async for state in states:
                yield cast("State | Result[ValueT]", state)

    def run_sync(self, *args: P.args, **kwargs: P.kwargs) -> Result[ValueT]:
        """`run`, where no event loop runs."""
        return wait_for(self.run(*args, **kwargs), "await run(...)")

    def run_all_sync(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Result[ValueT], ...]:
        """`run_all`, where no event loop runs."""
        return wait_for(self.run_all(*args, **kwargs), "await run_all(...)")

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...

    @overload
    def __get__(
        self: "Query[Concatenate[OwnerT, Q], R, ValueT]",
        instance: OwnerT,
        owner: type | None = None,
        /,
    ) -> "Query[Q, R, ValueT]": ...

    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        if instance is None:
            return self
        function = self._function and MethodType(self._function, instance)
        return type(self)(bound(self._program, instance), self._choices, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The return value; the Result if the query has no return statement."""
        raise NotImplementedError

    def _returned(self, result: Result[ValueT]) -> Any:
        return result.value if self._program.returns else result


class AsyncQuery(Query[P, Coroutine[Any, Any, R], ValueT], Generic[P, R, ValueT]):
    """A query defined by `async def`."""

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = self._returned(await self.run(*args, **kwargs))
        return returned


class SyncQuery(Query[P, R, ValueT]):
    """A query defined by `def`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        returned: R = self._returned(
            wait_for(self.run(*args, **kwargs), "await run(...), or async def")
        )
        return returned


class Template(Query[..., Any, Any]):
    """A query made by F. It takes only keywords, so in a class it is no method."""

    def __get__(self, instance: Any, owner: type | None = None, /) -> Any:
        return self

    def __call__(self, **keywords: object) -> Any:
        """The hole's value; a dict for several holes."""
        return self._returned(wait_for(self.run(**keywords), "await run(...)"))

    def _returned(self, result: Result[Any]) -> Any:
        values = dict(result.variables)
        return next(iter(values.values())) if len(values) == 1 else values


class QueryDecorator:
    """Decorates a function whose body or docstring is a program: `@query`, `@query(model=...)`.

    Its parameters are the program's variables. Raises BadProgram.
    """

    def __init__(self, choices: RunOptions) -> None:
        self._choices = choices

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, None]], /
    ) -> AsyncQuery[P, Result[None], None]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncQuery[P, R, R]: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, function: Callable[P, None], /) -> SyncQuery[P, Result[None], None]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncQuery[P, R, R]: ...

    @overload
    def __call__(self, /, **options: Unpack[RunOptions]) -> "QueryDecorator": ...

    def __call__(self, function: Any = None, /, **options: Unpack[RunOptions]) -> Any:
        choices = choices_of(options, self._choices)
        if function is None:
            return QueryDecorator(choices)
        decorator = inspect.currentframe()
        is_async = inspect.iscoroutinefunction(function)
        kind: type[Query[..., Any, Any]] = AsyncQuery if is_async else SyncQuery
        around = None if decorator is None else decorator.f_back
        return kind(read_function(function, around=around), choices, function)


query = QueryDecorator(RunOptions())


def _signature(program: Program, function: Callable[..., object] | None) -> inspect.Signature:
    if function is not None:
        return inspect.signature(function)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature([inspect.Parameter(name, kind) for name in program.parameters])


def F(
    prompt: str,
    where: str | None = None,
    *,
    constraints: str | None = None,
    **options: Unpack[RunOptions],
) -> Template:
    """A query of one prompt: names in braces are keywords of the call, the hole is the value.

    `F("Say {a} politely: [X]", "len(X) < 40")(a="no")`. With several holes a call returns a dict.
    `where`: a condition, as behind a prompt; `constraints`: LMQL's name for it. Raises BadProgram,
    and TypeError if both are given.
    """
    if where is not None and constraints is not None:
        raise TypeError("F() takes `where` or `constraints`, which mean the same")
    condition = constraints if where is None else where
    return Template(read_template(prompt, condition), choices_of(options))
