"""Rewrites `global` in programs that are whole texts: their variables are those of a function.

    n = 0                           n = 0
    def f():                        def f():
        global n; n += 1                nonlocal n; n += 1

Each run of a program has its own variables, so replays do not affect each other.
"""

import ast
from collections.abc import Sequence

from client.query.reading import names
from client.query.reading.nodes import Nodes

_FunctionT = ast.FunctionDef | ast.AsyncFunctionDef


def rewrite_globals(nodes: Nodes, block: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Rewrite the block of one function in place. Raises BadProgram."""
    changed = ast.Module(list(block), [])
    _Rewriter(nodes, names.bound(block)).visit(changed)
    return changed.body


class _Rewriter(ast.NodeTransformer):
    """`bound`: names of the program itself; others are unchanged."""

    def __init__(self, nodes: Nodes, bound: set[str]) -> None:
        self._nodes = nodes
        self._bound = bound
        # For each enclosing function and class: its own variables.
        self._around: list[set[str]] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._within(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AsyncFunctionDef:
        self._within(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        # Names bound in a class are not visible in its functions.
        self._around.append(set())
        self.generic_visit(node)
        self._around.pop()
        return node

    def _within(self, node: _FunctionT) -> None:
        parameters = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
        own = (each for each in names.own_scope(node.body) if isinstance(each, ast.Global))
        declared = {name for each in own for name in each.names}
        self._around.append((names.bound(node.body) | parameters) - declared)
        self.generic_visit(node)
        self._around.pop()

    def visit_Global(self, node: ast.Global) -> list[ast.stmt]:
        own = [name for name in node.names if name in self._bound]
        others = [name for name in node.names if name not in self._bound]
        for name in own:
            if any(name in bound for bound in self._around[:-1]):
                what = f"`global {name}`: a function around this one has a {name} of its own"
                raise self._nodes.text.bad(what, self._nodes.span(node).start)
        made: list[ast.stmt] = []
        if others:
            made.append(ast.copy_location(ast.Global(others), node))
        if own and self._around:
            made.append(ast.copy_location(ast.Nonlocal(own), node))
        return made or [ast.copy_location(ast.Pass(), node)]
