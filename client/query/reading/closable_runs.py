"""Rewrites bodies so that a closed run ends even if its program catches CancelledError.

    try: ...               try: ...
    except: a              except: context.on_caught(); a        the run's end is raised again
    while x: b             while x: context.on_loop(); b      no further iteration

A run is closed by an exception at the hole where it waits. A program that treats it as a failure of
that hole would retry without end. Handlers that name CancelledError are left unchanged.

Clean-up code (a `finally`, a handler, functions they call) may finish its loops, as long as it
requests no hole.
"""

import ast
from collections.abc import Iterator, Sequence
from typing import TypeVar

from client.query.reading.nodes import CONTEXT, Nodes, plain_call

_CANCELLED = "CancelledError"
_TryT = TypeVar("_TryT", ast.Try, ast.TryStar)
_LoopT = TypeVar("_LoopT", ast.For, ast.AsyncFor, ast.While)


def make_closable(nodes: Nodes, statements: Sequence[ast.stmt]) -> None:
    """Insert these calls into a rewritten body and the async functions that it defines."""
    rewriter = _Rewriter(nodes)
    for statement in statements:
        rewriter.visit(statement)


class _Rewriter(ast.NodeTransformer):
    """Modifies trees in place."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._cleans_up = False

    # Handlers

    def visit_Try(self, node: ast.Try) -> ast.Try:
        return self._try(node)

    def visit_TryStar(self, node: ast.TryStar) -> ast.TryStar:
        return self._try(node)

    def _try(self, node: _TryT) -> _TryT:
        self._all(node.body, cleans_up=self._cleans_up)
        self._all(node.orelse, cleans_up=self._cleans_up)
        for handler in node.handlers:
            self._all(handler.body, cleans_up=True)
            if not _names_cancelled(handler.type):
                handler.body.insert(0, self._call("on_caught", handler))
        self._all(node.finalbody, cleans_up=True)
        return node

    # Loops

    def visit_For(self, node: ast.For) -> ast.For:
        return self._loop(node)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AsyncFor:
        return self._loop(node)

    def visit_While(self, node: ast.While) -> ast.While:
        return self._loop(node)

    def _loop(self, node: _LoopT) -> _LoopT:
        self.generic_visit(node)
        node.body.insert(0, self._call("on_loop", node, ast.Constant(self._cleans_up)))
        return node

    # Functions: only async ones can await other queries

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self._all(node.body, cleans_up=True)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._all(list(_async_functions(node)), cleans_up=True)
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        return node

    def _all(self, statements: Sequence[ast.stmt], *, cleans_up: bool) -> None:
        before = self._cleans_up
        self._cleans_up = cleans_up
        for statement in statements:
            self.visit(statement)
        self._cleans_up = before

    def _call(
        self, method: str, where: ast.stmt | ast.excepthandler, *arguments: ast.expr
    ) -> ast.stmt:
        call = ast.Expr(plain_call(CONTEXT, method, arguments))
        return self._nodes.at(call, self._nodes.span(where))


def _async_functions(node: ast.AST) -> Iterator[ast.AsyncFunctionDef]:
    """The async functions that a function defines, such as decorator wrappers."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.AsyncFunctionDef):
            yield inner
        else:
            yield from _async_functions(inner)


def _names_cancelled(caught: ast.expr | None) -> bool:
    if caught is None:
        return False
    return any(
        (isinstance(node, ast.Name) and node.id == _CANCELLED)
        or (isinstance(node, ast.Attribute) and node.attr == _CANCELLED)
        for node in ast.walk(caught)
    )
