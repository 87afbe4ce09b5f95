"""Finds unknown methods of holes in conditions, such as `X.startswth("a")`, before X is filled."""

import ast
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import ClassVar

# Nodes in which a name may be another variable.
_OTHER_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# Operators that determine the type of a hole.
_TYPING = ("type", "int", "float")


class HoleMethods:
    """Collects the attributes of holes in the conditions of one program."""

    known: ClassVar = frozenset(name for name in dir(str) if not name.startswith("_"))

    def __init__(self, holes: AbstractSet[str]) -> None:
        self._holes = holes
        self._asked: list[tuple[str, ast.Attribute]] = []
        self._typed: set[str] = set()

    def note(self, condition: ast.expr) -> None:
        """Collect those of a condition, which is not rewritten yet."""
        nodes = list(ast.walk(condition))
        has_other_scopes = any(isinstance(node, _OTHER_SCOPES) for node in nodes)
        for node in nodes:
            match node:
                case ast.Attribute(ast.Name(hole)) if hole in self._holes:
                    if not has_other_scopes:
                        self._asked.append((hole, node))
                case ast.Call(ast.Name(name), [ast.Name(hole)]) if name.lower() in _TYPING:
                    self._typed.add(hole)

    def unknown(self, texts: AbstractSet[str]) -> Iterator[ast.Attribute]:
        """Those that str lacks, of holes that are text and that no condition gives another type."""
        for hole, node in self._asked:
            if hole in texts and hole not in self._typed and not hasattr(str, node.attr):
                yield node
