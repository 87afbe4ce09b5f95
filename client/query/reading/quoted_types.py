"""Types in quotation marks, in classes that a program in a text defines: `next: "Node | None"`.

Python looks such names up in a class's module. These classes are local to one run of their program,
and so are the names that they mean.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from types import FrameType
from typing import Any, get_args, is_typeddict

from client.query.conditions.schemas import hints_of
from client.query.errors import BadCondition
from client.query.reading import program_text


def let_names_be_found(kind: object, frame: FrameType) -> None:
    """Let each class of the program in a hole's type say its types as they are where the hole
    stands, in the frame.
    """
    seen: set[int] = set()
    left = [kind]
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        left.extend(get_args(each))
        for owner in _own(each):
            _find(owner, {**frame.f_globals, **frame.f_locals})
            left.extend(owner.__annotations__.values())


def _own(kind: object) -> Iterator[type]:
    """The program's own class that a type is, and those that it is derived from."""
    if isinstance(kind, type) and (is_dataclass(kind) or is_typeddict(kind)):
        for each in kind.__mro__:
            if each.__module__ == program_text.__name__:
                yield each


def _find(owner: Any, names: Mapping[str, object]) -> None:
    """Let a class say what the types of its own fields are; one that is not found stays, so that
    the hole's plan tells it.
    """
    own = inspect.get_annotations(owner)
    for name, said in own.items():
        alone = type(owner.__name__, (), {"__annotations__": {name: said}})
        with suppress(BadCondition):
            own[name] = hints_of(alone, names)[name]
    owner.__annotations__ = own
