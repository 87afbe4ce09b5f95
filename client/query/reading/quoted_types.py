"""Resolves quoted types.

They occur in classes that a text program defines, `next: "Node | None"`, and within a hole's type,
`[X: list["Node"]]`.

Python resolves such names in a module, but these classes and names are local to one run.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, ForwardRef, Literal, get_args, get_origin, is_typeddict

from client.query.conditions.schemas import hints_of
from client.query.errors import BadCondition
from client.query.reading import program_text


def resolve_quoted_types(kind: object, names: Mapping[str, object]) -> object:
    """A hole's type with quoted names resolved in `names`, also in the program's own classes in it.

    Raises BadCondition.
    """
    kind = _without_quotes(kind, names)
    seen: set[int] = set()
    left = [kind]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        left.extend(get_args(each))
        for owner in _own(each):
            _find(owner, names)
            left.extend(owner.__annotations__.values())
    return kind


def _without_quotes(kind: object, names: Mapping[str, object]) -> object:
    """A generic type such as list["Node"] with resolved names. A string that is the whole type of a
    hole is a pattern.
    """
    if not any(isinstance(each, str | ForwardRef) for each in _parts(kind)):
        return kind
    alone = type(str(kind), (), {"__annotations__": {"kind": kind}})
    return hints_of(alone, names)["kind"]


def _parts(kind: object) -> Iterator[object]:
    """All types in a type, recursively."""
    for each in () if get_origin(kind) is Literal else get_args(kind):
        yield each
        yield from _parts(each)


def _own(kind: object) -> Iterator[type]:
    """The type and its base classes, if the program defines them."""
    if isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind)):
        for each in kind.__mro__:
            if each.__module__ == program_text.__name__:
                yield each


def _find(owner: Any, names: Mapping[str, object]) -> None:
    """Resolve the field types of a class; an unknown one stays, and the hole's plan reports it."""
    own = inspect.get_annotations(owner)
    for name, said in own.items():
        alone = type(owner.__name__, (), {"__annotations__": {name: said}})
        with suppress(BadCondition):
            own[name] = hints_of(alone, names)[name]
    owner.__annotations__ = own
