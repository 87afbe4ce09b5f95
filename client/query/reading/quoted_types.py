"""Types in quotation marks: in classes that a program in a text defines, `next: "Node | None"`, and
within a hole's type, `[X: list["Node"]]`.

Python looks such names up in a module. These classes are local to one run of their program, and so
are the names that they mean.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Any, ForwardRef, Literal, get_args, get_origin, is_typeddict

from client.query.conditions.schemas import hints_of
from client.query.errors import BadCondition
from client.query.reading import program_text


def with_names_found(kind: object, names: Mapping[str, object]) -> object:
    """A hole's type, with what its words mean among the names that are known where it stands; the
    program's own classes in it say their types so, too. Raises BadCondition.
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
    """A type of others, such as list["Node"], with what their names mean. A string that is a hole's
    whole type is a pattern.
    """
    if not any(isinstance(each, str | ForwardRef) for each in _parts(kind)):
        return kind
    alone = type(str(kind), (), {"__annotations__": {"kind": kind}})
    return hints_of(alone, names)["kind"]


def _parts(kind: object) -> Iterator[object]:
    """The types in a type, and those in these."""
    for each in () if get_origin(kind) is Literal else get_args(kind):
        yield each
        yield from _parts(each)


def _own(kind: object) -> Iterator[type]:
    """The program's own class that a type is, and those that it is derived from."""
    if isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind)):
        for each in kind.__mro__:
            if each.__module__ == program_text.__name__:
                yield each


def _find(owner: Any, names: Mapping[str, object]) -> None:
    """Let a class say what the types of its own fields are; one that is not found stays, so that
    the hole's plan reports it.
    """
    own = inspect.get_annotations(owner)
    for name, said in own.items():
        alone = type(owner.__name__, (), {"__annotations__": {name: said}})
        with suppress(BadCondition):
            own[name] = hints_of(alone, names)[name]
    owner.__annotations__ = own
