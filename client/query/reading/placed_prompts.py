"""Inserts the statements of prompts into a program's body."""

import ast
from collections.abc import Sequence

from client.query.reading.bodies import Body
from client.query.reading.expressions import expression
from client.query.reading.layout import PromptText
from client.query.reading.nodes import Nodes
from client.query.reading.prompts import Prompt, PromptRewriter


class PlacedPrompts(ast.NodeTransformer):
    """Replaces prompts by their statements; strings in functions stay strings."""

    def __init__(self, nodes: Nodes, body: Body, rewriter: PromptRewriter) -> None:
        self._nodes = nodes
        self._body = body
        self._rewriter = rewriter

    def visit_all(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            visited = self.visit(statement)
            made.extend(visited if isinstance(visited, list) else [visited])
        return made

    def visit_Expr(self, node: ast.Expr) -> ast.stmt | list[ast.stmt]:
        match self._body.found(node):
            case Prompt() as prompt:
                return self._rewriter.statements(prompt)
            case PromptText() as string:
                text = self._nodes.text
                value = expression(text, text.slice(string.span), "in a string")
                return self._nodes.at(ast.Expr(value), string.span)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        """Give a class a qualified name as in a module: prompts may recall its instances."""
        self.generic_visit(node)
        named = ast.Assign([ast.Name("__qualname__", ast.Store())], ast.Constant(node.name))
        behind = 0 if ast.get_docstring(node) is None else 1
        node.body.insert(behind, self._nodes.at(named, self._nodes.span(node)))
        return node


def with_return(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """Return the value of a last statement that is an expression without effect."""
    last = body[-1] if body else None
    if not isinstance(last, ast.Expr):
        return list(body)
    if isinstance(last.value, ast.Constant | ast.Call | ast.Await | ast.JoinedStr):
        return list(body)
    return [*body[:-1], ast.copy_location(ast.Return(last.value), last)]
