"""Handles `from __future__ import annotations` at the start of a program.

Python allows it only at the start of a module, but a program's code is in a function; so it is
removed and passed to Python's compiler as a flag.
"""

import __future__

import ast
from collections.abc import Sequence

from client.query.reading.nodes import Nodes


def flags_of(nodes: Nodes, statements: Sequence[ast.stmt]) -> tuple[int, int]:
    """The number of such imports, and the compiler flags. Raises BadProgram."""
    number = flags = 0
    for statement in statements:
        if not isinstance(statement, ast.ImportFrom) or statement.module != "__future__":
            break
        number += 1
        for alias in statement.names:
            flags |= _flag(nodes, alias)
    return number, flags


def _flag(nodes: Nodes, alias: ast.alias) -> int:
    if alias.name not in __future__.all_feature_names:
        what = f"future feature {alias.name} is not defined"
        span = nodes.span(alias)
        raise nodes.text.bad(what, span.start, span.end)
    flag: int = getattr(__future__, alias.name).compiler_flag
    return flag
