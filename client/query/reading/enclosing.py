"""The variables of the function in which a query is decorated.

Programs can use them, although Python creates no closure for a docstring.

    def tower():
        word = "up"
        @query
        def climb(n):
            '''"{word}[X: climb(n - 1)]"'''        word: its value here; climb: bound after this
        return climb

A variable with a value at the decoration keeps that value. One that is assigned later (the query's
own name, another query's) is looked up when the program is run, as in a closure.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CellType, FrameType, MappingProxyType


@dataclass(frozen=True, slots=True)
class Enclosing:
    """values: of the bound variables. frame: of the function; None: there is none."""

    values: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    frame: FrameType | None = None

    def is_late(self, name: str, own_name: str) -> bool:
        """Whether a variable of the function is assigned after the decoration.

        The query's own name always is.
        """
        if self.frame is None:
            return False
        code = self.frame.f_code
        is_variable = name in code.co_varnames or name in code.co_cellvars
        return is_variable and (name == own_name or name not in self.values)


def enclosing(frame: FrameType | None) -> Enclosing:
    """The enclosing variables at a frame. Module names are globals, looked up late."""
    if frame is None or frame.f_locals is frame.f_globals:
        return Enclosing()
    # Names bound in a class body are not visible in methods.
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return Enclosing(dict(frame.f_locals), frame if is_function else None)


class LateNames:
    """Owner of the cells of late names. Keeps the frame until all of them have values."""

    def __init__(self, names: list[str], frame: FrameType) -> None:
        self.cells = {name: CellType() for name in names}
        self._left = tuple(names)
        self._frame: FrameType | None = frame

    def look_up(self) -> None:
        """Fill the cells of names that have a value by now; Python raises for others if used.

        Several threads may call it at once with the same result.
        """
        frame = self._frame
        if frame is None:
            return
        values = frame.f_locals
        left = self._left
        for name in left:
            if name in values:
                self.cells[name].cell_contents = values[name]
        self._left = tuple(name for name in left if name not in values)
        if not self._left:
            self._frame = None
