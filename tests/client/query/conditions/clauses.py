"""`where` clauses as text, read into terms by Python's parser: what `reading/` does, in short."""

import ast
from collections.abc import Iterable, Mapping

from client.query.conditions import build
from client.query.conditions.operators import OPERATORS
from client.query.conditions.terms import Term
from client.query.place import Place

_RELATIONS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.GtE: ">=",
    ast.Gt: ">",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


def term(clause: str, holes: Iterable[str] = "XYZ", **values: object) -> Term:
    """The clause as a term over these holes; other names are Python's, their values given."""
    return build.term(_Reader(clause, frozenset(holes), values).read())


class _Reader:
    def __init__(self, clause: str, holes: frozenset[str], values: Mapping[str, object]) -> None:
        self._clause = clause
        self._holes = holes
        self._values = dict(values)

    def read(self) -> object:
        return self._read(ast.parse(self._clause, mode="eval").body)

    def _read(self, node: ast.expr) -> object:
        place = Place(node.lineno, node.col_offset + 1, node.lineno, (node.end_col_offset or 0) + 1)
        names = self._names(node)
        match node:
            case ast.BoolOp(op, parts):
                joined = build.all_ if isinstance(op, ast.And) else build.any_
                return joined(place, *(lambda part=part: self._read(part) for part in parts))
            case ast.UnaryOp(ast.Not(), operand):
                return build.not_(place, self._read(operand))
            case ast.Compare() if names:
                return self._compared(node, place)
            case ast.Call(ast.Name(name), arguments) if names and name.lower() in OPERATORS:
                return build.called(place, name.lower(), *map(self._read, arguments))
            case ast.Name(name) if names:
                return build.ref(place, name)
            case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() as symbol, right) if names:
                shown = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}[type(symbol)]
                text = self._clause[node.col_offset : node.end_col_offset]
                return build.calculated(place, self._read(left), shown, self._read(right), text)
        if not names:
            return eval(self._clause[node.col_offset : node.end_col_offset], self._values)
        code = self._clause[node.col_offset : node.end_col_offset]
        function = eval(f"lambda {', '.join(names)}: {code}", self._values)
        return build.opaque(place, tuple(names), function, code)

    def _compared(self, node: ast.Compare, place: Place) -> object:
        sides = [self._read(side) for side in (node.left, *node.comparators)]
        pairs = zip(sides, node.ops, sides[1:], strict=False)
        made = [
            build.compare(place, left, _RELATIONS[type(relation)], right)
            for left, relation, right in pairs
        ]
        return build.all_(place, *(lambda each=each: each for each in made))

    def _names(self, node: ast.AST) -> list[str]:
        found = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        return sorted(self._holes.intersection(found))
