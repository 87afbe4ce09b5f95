"""Rewrites strings in conditions that recall holes."""

import ast
import re
from collections.abc import Set as AbstractSet

from client.query.reading.nodes import Nodes, load

_HOLE = re.compile(r"\[\s*([^\W\d]\w*)\s*\]")
_RECALL = re.compile(r"\{\s*([^\W\d]\w*)\s*\}")


class Recalls(ast.NodeTransformer):
    """In a condition, `"{X}"` recalls a hole, as in a prompt; `"[X]"` is refused.

    Other brackets are literal, since patterns and stop phrases often contain them.
    """

    def __init__(self, nodes: Nodes, holes: AbstractSet[str]) -> None:
        self._nodes = nodes
        self._holes = holes

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if not isinstance(node.value, str):
            return node
        span = self._nodes.span(node)
        for match in _HOLE.finditer(node.value):
            if match[1] in self._holes:
                raise self._nodes.text.bad(
                    f"a condition asks for no holes, only prompts do: '[{match[1]}]'",
                    span.start,
                    span.end,
                )
        values: list[ast.expr] = []
        begin = 0
        for match in _RECALL.finditer(node.value):
            if match[1] in self._holes:
                values.append(ast.Constant(node.value[begin : match.start()]))
                values.append(ast.FormattedValue(load(match[1]), -1, None))
                begin = match.end()
        if not values:
            return node
        values.append(ast.Constant(node.value[begin:]))
        return self._nodes.at(ast.JoinedStr(values), span)
