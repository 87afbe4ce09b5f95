"""The function that a query is decorated in: its program sees that function's names, though Python
closes over none for the sake of a docstring.

    def tower():
        word = "up"
        @query
        def climb(n):
            '''"{word}[X: climb(n - 1)]"'''        word: its value here; climb: bound after this
        return climb

A name that has a value where the query is decorated means that value. One that gets its value later
(the query's own, another query's) is looked up when the program is run, as in a closure.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CellType, FrameType, MappingProxyType


@dataclass(frozen=True, slots=True)
class Enclosing:
    """`values`: those of names that are bound. `frame` runs the function; None: there is none."""

    values: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    frame: FrameType | None = None

    def is_late(self, name: str, own_name: str) -> bool:
        """Whether a variable of the function gets its value behind the query's decorator.

        The query's own name does so, whatever it was bound to before.
        """
        if self.frame is None:
            return False
        code = self.frame.f_code
        is_variable = name in code.co_varnames or name in code.co_cellvars
        return is_variable and (name == own_name or name not in self.values)


def enclosing(frame: FrameType | None) -> Enclosing:
    """What code at a frame has around it. Names of modules are globals, looked up late."""
    if frame is None or frame.f_locals is frame.f_globals:
        return Enclosing()
    # In a class body names are bound, too, but methods do not see them as variables.
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return Enclosing(dict(frame.f_locals), frame if is_function else None)


class LateNames:
    """Owner of the cells of names that get their values later. Keeps the frame until all have."""

    def __init__(self, names: list[str], frame: FrameType) -> None:
        self.cells = {name: CellType() for name in names}
        self._left = tuple(names)
        self._frame: FrameType | None = frame

    def look_up(self) -> None:
        """Fill the cells of names that have a value by now. At others Python raises, if need be.

        Several threads may do so at once: each finds the same.
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
