"""A parsed program: made by `reading/`, run by `running/`. Frozen.

A program's body is an async function that gets a CallContext and calls it for every part of its
prompts. It is run again, with the known answers, whenever a trace forks or backtracks.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from client.query.conditions.terms import Term
from client.query.errors import Place, Source

# A compiled `where` clause; it reads Python's variables when it is called.
Condition = Callable[[], Term]


@dataclass(frozen=True, slots=True)
class Decorator:
    """`@f` or `@f(a)` before a hole's name; `function` is applied to its value."""

    function: Callable[..., Any]
    place: Place


@dataclass(frozen=True, slots=True)
class Hole:
    """`[NAME]`, reached by the program.

    kind:       its annotation: int, float, bool, str, a string (a regular expression), a dataclass,
                a dict (a JSON schema), a Subquery; None: it has none
    conditions: those of its prompt, then the program's own
    support:    the values of a distribution over this hole, None: it has none
    is_last:    no other hole can follow in its program
    """

    name: str
    place: Place
    kind: object | None = None
    decorators: tuple[Decorator, ...] = ()
    conditions: tuple[Condition, ...] = ()
    support: tuple[str, ...] | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class DecoderClause:
    """A decoder clause of a program, such as `sample(n=2)`: name and arguments."""

    name: str
    arguments: tuple[object, ...]
    options: Mapping[str, object]
    place: Place


@dataclass(frozen=True, slots=True)
class ModelClause:
    """The model of a `from` clause."""

    value: object
    place: Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program; `body(context, *arguments)` runs it and returns its value.

    decoder, model:   evaluated at each run with the same arguments, since clauses may use
                      parameters; None: the clause is absent
    hole_names:       all names of holes in its text
    returns:          whether it returns a value somewhere
    """

    name: str
    source: Source
    parameters: tuple[str, ...]
    body: Callable[..., Awaitable[object]]
    hole_names: frozenset[str]
    returns: bool
    decoder: Callable[..., DecoderClause] | None = None
    model: Callable[..., ModelClause] | None = None


@dataclass(frozen=True, slots=True)
class Subquery:
    """`[X: f]` or `[X: f(a, k=v)]`: the program that fills a hole, and its arguments."""

    program: Program
    arguments: tuple[object, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
