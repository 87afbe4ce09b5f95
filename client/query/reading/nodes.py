"""Builds nodes of generated code, each with its place in the program."""

import ast
from collections.abc import Sequence
from typing import TypeVar

from client.query.place import Place
from client.query.reading.text import SourceSpan, Text

# The names of the two helpers in generated code; holes cannot have them. They end with underscores,
# so Python does not mangle them in classes.
CALLS = "__tandem"
CONTEXT = "__tandem_context__"

NodeT = TypeVar("NodeT", bound=ast.AST)


class Nodes:
    """Makes nodes, and numbers the places that the code names."""

    def __init__(self, text: Text) -> None:
        self.text = text
        self.places: list[Place] = []

    def number(self, span: SourceSpan) -> ast.expr:
        """The number of a place, for `Calls`."""
        self.places.append(self.text.place(span))
        return ast.Constant(len(self.places) - 1)

    def at(self, node: NodeT, span: SourceSpan) -> NodeT:
        """The tree, with nodes without a place set to the span."""
        line, column = self.text.byte_position(span.start)
        end_line, end_column = self.text.byte_position(span.end)
        for each in ast.walk(node):
            if "lineno" in each._attributes and not hasattr(each, "lineno"):
                each.lineno = line  # type: ignore[attr-defined]
                each.col_offset = column  # type: ignore[attr-defined]
                each.end_lineno = end_line  # type: ignore[attr-defined]
                each.end_col_offset = end_column  # type: ignore[attr-defined]
        return node

    def span(self, node: ast.expr | ast.stmt | ast.excepthandler | ast.alias) -> SourceSpan:
        """The place of a node."""
        start = self.text.offset_of_bytes(node.lineno, node.col_offset)
        end = self.text.offset_of_bytes(node.end_lineno or node.lineno, node.end_col_offset or 0)
        return SourceSpan(start, end)

    def call(self, method: str, span: SourceSpan, *arguments: ast.expr) -> ast.expr:
        """A call of `Calls`; its first argument is the number of the place."""
        return self.at(plain_call(CALLS, method, [self.number(span), *arguments]), span)


def plain_call(
    owner: str,
    method: str,
    arguments: Sequence[ast.expr],
    keywords: Sequence[ast.keyword] = (),
) -> ast.Call:
    """`owner.method(*arguments)`."""
    function = ast.Attribute(load(owner), method, ast.Load())
    return ast.Call(function, list(arguments), list(keywords))


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def lambda_of(names: Sequence[str], body: ast.expr) -> ast.Lambda:
    """`lambda *names: body`."""
    return ast.Lambda(arguments_of(names), body)


def arguments_of(names: Sequence[str]) -> ast.arguments:
    """Plain parameters."""
    return ast.arguments(
        posonlyargs=[],
        args=[ast.arg(name) for name in names],
        vararg=None,
        kwonlyargs=[],
        kw_defaults=[],
        kwarg=None,
        defaults=[],
    )


def tuple_of(elements: Sequence[ast.expr]) -> ast.Tuple:
    return ast.Tuple(list(elements), ast.Load())
