"""`from __future__ import annotations` in front of all else that a program says.

Python takes it at the beginning of a module alone, and a program's code stands in a function; so it
is taken out, and Python's compiler gets it as a flag.
"""

import __future__

import ast
from collections.abc import Sequence

from client.query.reading.nodes import Nodes


def flags_of(nodes: Nodes, statements: Sequence[ast.stmt]) -> tuple[int, int]:
    """How many statements are such imports, and the flags for the compiler. Raises BadProgram."""
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
