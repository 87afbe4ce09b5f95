"""Finds holes that are the last ones of a run: no await can follow them.

    "[X]"                       last
    if X: "a [Y]"               last
    else: "b [Z] c [W]"         Z is not, W is
    while True: "[V]"           never: the loop may repeat it

A hole is awaited, and so is everything else that could reach one. A missed one costs a request; a
found one must be correct.
"""

import ast
from collections.abc import Sequence

from client.query.reading.nodes import CONTEXT

_AWAITING = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.AsyncFunctionDef)


def mark_last(statements: Sequence[ast.stmt]) -> None:
    """Mark the last holes of a rewritten body with `is_last`."""
    _mark(statements, may_follow=False)


def _mark(statements: Sequence[ast.stmt], *, may_follow: bool) -> None:
    for statement in reversed(statements):
        made = None if may_follow else _hole_of(statement)
        if made is not None:
            is_last = ast.copy_location(ast.Constant(True), made)
            made.keywords.append(ast.copy_location(ast.keyword("is_last", is_last), made))
        elif isinstance(statement, ast.If):
            _mark(statement.body, may_follow=may_follow)
            _mark(statement.orelse, may_follow=may_follow)
        may_follow = may_follow or _may_await(statement)


def _may_await(statement: ast.stmt) -> bool:
    return any(isinstance(node, _AWAITING) for node in ast.walk(statement))


def _hole_of(statement: ast.stmt) -> ast.Call | None:
    """The call that makes the hole, of `X = await context.hole(...)`."""
    match statement:
        case ast.Assign(
            value=ast.Await(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=str() as name), attr="hole"),
                    args=[ast.Call() as made],
                )
            )
        ) if name == CONTEXT:
            return made
    return None
