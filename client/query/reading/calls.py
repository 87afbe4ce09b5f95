"""The functions that a rewritten program calls besides its Context.

Places are passed as numbers, since code objects can only contain constants.
"""

import sys
from collections import ChainMap
from collections.abc import Callable, Iterable
from inspect import iscoroutine
from itertools import islice
from types import FrameType, MappingProxyType, NoneType
from typing import Any

from client.calls import MAX_VALUES
from client.query.conditions import build
from client.query.conditions.terms import Term
from client.query.errors import BadCondition, BadProgram
from client.query.place import Place, Source
from client.query.program import (
    Condition,
    DecoderClause,
    Decorator,
    Hole,
    ModelClause,
    Program,
    PromptCondition,
    Subquery,
)
from client.query.reading.quoted_types import resolve_quoted_types


class Calls:
    """Makes holes, clauses and terms with their places; one for each program."""

    def __init__(self, source: Source, places: list[Place], around: dict[str, object]) -> None:
        """`around`: variables of the enclosing function, for quoted types."""
        self._source = source
        self._places = places
        self._around = around

    def place(self, number: int) -> Place:
        return self._places[number]

    # Prompts

    def recalled(self, value: object) -> object:
        """A recalled value. Raises TypeError for a coroutine that was not awaited."""
        if iscoroutine(value):
            value.close()
            raise TypeError("a call of an async function is not awaited; write {await ...}")
        return value

    # Holes

    def hole(
        self,
        name: str,
        number: int,
        kind: object,
        decorators: tuple[Decorator, ...],
        conditions: tuple[Condition, ...],
        support: tuple[str, ...] | None,
        is_last: bool = False,
    ) -> Hole:
        return Hole(
            name=name,
            place=self._places[number],
            kind=kind,
            decorators=decorators,
            conditions=conditions,
            support=support,
            is_last=is_last,
        )

    def decorator(self, number: int, function: object) -> Decorator:
        if not callable(function):
            what = f"behind '@' comes a function. Given: {function!r}"
            raise BadProgram(what, self._places[number], self._source)
        return Decorator(function, self._places[number])

    def kind(self, number: int, value: object) -> object:
        """The annotation of a hole; a query becomes a Subquery."""
        return self._kind(number, value, sys._getframe(1))

    def called_kind(
        self,
        number: int,
        function: Callable[..., object],
        /,
        *arguments: object,
        **keywords: object,
    ) -> object:
        """A call as annotation; the call of a query is deferred."""
        program = _program_of(function)
        if program is None:
            return self._kind(number, function(*arguments, **keywords), sys._getframe(1))
        return Subquery(program, arguments, MappingProxyType(keywords))

    def _kind(self, number: int, value: object, body: FrameType) -> object:
        program = _program_of(value)
        if program is not None:
            return Subquery(program)
        if value is None:
            # As in annotations, None means its type.
            return NoneType
        try:
            names = ChainMap(body.f_locals, self._around, body.f_globals)
            return resolve_quoted_types(value, names)
        except BadCondition as error:
            raise BadCondition(error.message, self._places[number], self._source) from error

    def support(self, number: int, name: str, values: object) -> tuple[str, ...]:
        """The values of a distribution. Raises BadProgram."""
        if isinstance(values, str) or not isinstance(values, Iterable):
            what = f"a distribution over {name} needs a list of strings. Given: {values!r}"
            raise BadProgram(what, self._places[number], self._source)
        given = list(islice(values, MAX_VALUES + 1))
        if len(given) > MAX_VALUES:
            what = f"a distribution over {name} has at most {MAX_VALUES} values. Given: more"
            raise BadProgram(what, self._places[number], self._source)
        texts = [value for value in given if isinstance(value, str) and value]
        if not given or len(texts) < len(given):
            what = f"a distribution over {name} needs strings that are not empty. Given: {given!r}"
            raise BadProgram(what, self._places[number], self._source)
        return tuple(dict.fromkeys(texts))

    # Clauses

    def decoder(
        self, number: int, name: str, /, *arguments: object, **options: object
    ) -> DecoderClause:
        return DecoderClause(name, arguments, MappingProxyType(options), self._places[number])

    def model(self, number: int, value: object) -> ModelClause:
        return ModelClause(value, self._places[number])

    # Conditions

    def ref(self, number: int, name: str) -> Term:
        return build.ref(self._places[number], name)

    def all_(self, number: int, *parts: Callable[[], object]) -> Term:
        return build.all_(self._places[number], *parts)

    def any_(self, number: int, *parts: Callable[[], object]) -> Term:
        return build.any_(self._places[number], *parts)

    def not_(self, number: int, part: object) -> Term:
        return build.not_(self._places[number], part)

    def compare(self, number: int, left: object, relation: str, right: object) -> Term:
        return build.compare(self._places[number], left, relation, right)

    def calculated(self, number: int, left: object, symbol: str, right: object, text: str) -> Term:
        return build.calculated(self._places[number], left, symbol, right, text)

    def signed(self, number: int, symbol: str, operand: object, text: str) -> Term:
        return build.calculated(self._places[number], _ZERO, symbol, operand, text)

    def called(self, number: int, operator: str, *arguments: object) -> Term:
        return build.called(self._places[number], operator, *arguments)

    def opaque(
        self, number: int, names: tuple[str, ...], function: Callable[..., object], text: str
    ) -> Term:
        return build.opaque(self._places[number], names, function, text)

    def term(self, number: int, value: object) -> Term:
        return build.term(value, self._places[number])

    def prompt_condition(
        self,
        condition: Condition,
        here: tuple[str, ...],
        variables: tuple[tuple[str, Callable[[], object]], ...],
    ) -> PromptCondition:
        return PromptCondition(condition, frozenset(here), variables)


class _Zero(int):
    """The zero in `0 - X` for `-X`: a sign is arithmetic on holes, and has its Python meaning for
    other values.
    """

    def __add__(self, other: Any) -> Any:
        return +other

    def __sub__(self, other: Any) -> Any:
        return -other


_ZERO = _Zero()


def _program_of(value: object) -> Program | None:
    program = getattr(value, "program", None)
    return program if isinstance(program, Program) else None
