"""Classifies the names in conditions: holes, operators, or Python variables."""

import ast
from collections.abc import Set as AbstractSet

from client.query.conditions.letter_case import FOLDS
from client.query.conditions.operators import OPERATORS
from client.query.reading import names

SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}
SIGNS: dict[type[ast.unaryop], str] = {ast.UAdd: "+", ast.USub: "-"}


class ConditionWords:
    """The names in one program's conditions. Immutable.

    own: names of the program's own functions, which hide operators
    """

    def __init__(self, holes: AbstractSet[str], own: AbstractSet[str]) -> None:
        self.holes = holes
        self.own = own

    def named(self, node: ast.AST) -> tuple[str, ...]:
        """The holes that an expression mentions, in order."""
        return tuple(name for name in names.used(node) if name in self.holes)

    def operator(self, call: ast.Call) -> str | None:
        """The operator of a call; None: it is none."""
        if not isinstance(call.func, ast.Name) or call.func.id in self.own:
            return None
        name = call.func.id
        is_word = name.islower() or name.isupper()
        return name.lower() if is_word and name.lower() in OPERATORS else None

    def is_text(self, node: ast.expr) -> bool:
        """Whether this is a hole, or a hole in lower or upper case."""
        match node:
            case ast.Name(name):
                return name in self.holes
            case ast.Call(ast.Attribute(ast.Name(name), attr), [], []):
                return name in self.holes and attr in FOLDS
        return False
