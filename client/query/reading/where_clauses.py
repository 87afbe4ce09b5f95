"""Rewrites conditions into calls of `conditions/build.py`.

    len(words(X)) < n and X != Y and check(X)
    ->  lambda: compare(called("len", called("words", ref("X"))), "<", n)
        lambda: compare(ref("X"), "!=", ref("Y"))
        lambda: opaque(("X",), lambda X: check(X), "check(X)")

Each part of the outermost `and` is a separate condition, evaluated at the holes that it mentions,
since variables in the others may be unbound yet. Expressions without holes stay Python.
"""

import ast
import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from client.query.conditions.patterns import FOLDS
from client.query.conditions.terms import OPERATORS
from client.query.errors import BadProgram
from client.query.reading.nodes import Nodes, lambda_of, names_used, tuple_of
from client.query.reading.text import SourceSpan

SYMBOLS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*"}


# A hole's name in brackets or braces.
_IN_STRING = re.compile(r"(?:\[|\{)\s*([^\W\d]\w*)\s*[\]}]")


_RELATIONS: dict[type[ast.cmpop], str] = {
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
_METHODS = {"startswith": "starts_with", "endswith": "ends_with"}
_OPERATORS_OF_PYTHON = frozenset({"len", "int", "float", "type"})
# Values that are true in Python if they are not empty.
_NO_CONDITIONS = (ast.List, ast.Set, ast.Dict, ast.JoinedStr, ast.Lambda, ast.GeneratorExp)
_REFUSED = {
    ast.Await: "`await`",
    ast.Yield: "`yield`",
    ast.YieldFrom: "`yield`",
    ast.NamedExpr: "`:=`",
}


@dataclass(frozen=True, slots=True)
class Conjunct:
    """A part of a condition: the holes that it mentions, and a function that makes its term."""

    holes: frozenset[str]
    function: ast.expr

    def concerns(self, hole: str) -> bool:
        """Whether it is evaluated at a hole; one without holes is evaluated at each."""
        return not self.holes or hole in self.holes


class WhereClauses:
    """Rewrites the conditions of one program.

    own: names of the program's own functions, which hide operators
    """

    def __init__(self, nodes: Nodes, holes: AbstractSet[str], own: AbstractSet[str]) -> None:
        self._nodes = nodes
        self._all_holes = holes
        # Those of the condition that is read.
        self._holes = holes
        self._own = own

    def conjuncts(
        self, condition: ast.expr, variables: AbstractSet[str] = frozenset()
    ) -> list[Conjunct]:
        """The parts of the outermost `and`. Raises BadProgram.

        `variables`: holes that the program assigns, too: here their names are Python's.
        """
        self._holes = self._all_holes - variables
        self._check(condition)
        is_and = isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And)
        parts = condition.values if is_and and isinstance(condition, ast.BoolOp) else [condition]
        return [self._conjunct(part) for part in parts]

    def _conjunct(self, part: ast.expr) -> Conjunct:
        span = self._nodes.span(part)
        made = self._nodes.term("term", span, self._condition(part))
        function = self._nodes.at(lambda_of((), made), span)
        return Conjunct(frozenset(self._named(part)), function)

    def _check(self, condition: ast.expr) -> None:
        for node in ast.walk(condition):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._check_string(node, node.value)
            for kind, shown in _REFUSED.items():
                if isinstance(node, kind):
                    raise self._bad(f"{shown} cannot stand in a condition", node)
            if isinstance(node, ast.Call) and self._all_holes.isdisjoint(names_used(node)):
                self._check_operator(node)

    def _check_string(self, node: ast.Constant, value: str) -> None:
        """Refuse what was meant as in a prompt; patterns and phrases have other brackets."""
        for match in _IN_STRING.finditer(value):
            # The parts of an f-string have braces of their own.
            if match[1] in self._all_holes:
                what = f"a condition's string is no prompt: `{match[0]}`"
                raise self._bad(f"{what}; write {match[1]}, or an f-string", node)

    def _check_operator(self, call: ast.Call) -> None:
        """Refuse an operator without a hole, unless Python has a function of that name."""
        name = self._operator(call)
        if name is None or name in _OPERATORS_OF_PYTHON:
            return
        holes = ", ".join(sorted(self._holes)) or "none"
        shown = ast.unparse(call.func)
        raise self._bad(f"`{shown}` is asked of a hole; holes of this program: {holes}", call)

    def _check_is_condition(self, node: ast.expr) -> None:
        """Raises for a condition that is always true, which is probably a mistake."""
        if isinstance(node, ast.Tuple):
            raise self._bad("conditions are joined by `and`, not by a comma", node)
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text or isinstance(node, _NO_CONDITIONS):
            raise self._bad("this says nothing that could be true or false; compare it", node)

    # Words

    def _named(self, node: ast.AST) -> tuple[str, ...]:
        """The holes that an expression mentions, in order."""
        return tuple(name for name in names_used(node) if name in self._holes)

    def _operator(self, call: ast.Call) -> str | None:
        """The operator of a call; None: it is none."""
        if not isinstance(call.func, ast.Name) or call.func.id in self._own:
            return None
        name = call.func.id
        is_word = name.islower() or name.isupper()
        return name.lower() if is_word and name.lower() in OPERATORS else None

    def _is_text(self, node: ast.expr) -> bool:
        """Whether this is a hole, or a hole in lower or upper case."""
        match node:
            case ast.Name(name):
                return name in self._holes
            case ast.Call(ast.Attribute(ast.Name(name), attr), [], []):
                return name in self._holes and attr in FOLDS
        return False

    # Terms

    def _condition(self, node: ast.expr) -> ast.expr:
        """Rewrite a condition. `a if t else b` becomes `t and a or not t and b`."""
        self._check_is_condition(node)
        if not isinstance(node, ast.IfExp) or not self._named(node):
            return self._rewritten(node)
        span = self._nodes.span(node)
        opposite = self._nodes.at(ast.UnaryOp(ast.Not(), node.test), self._nodes.span(node.test))
        pairs = ((node.test, node.body), (opposite, node.orelse))
        cases = (self._nodes.term("all_", span, *map(self._later, pair)) for pair in pairs)
        later = (self._nodes.at(lambda_of((), case), span) for case in cases)
        return self._nodes.term("any_", span, *later)

    def _asks(self, node: ast.expr) -> bool:
        """Whether it has a hole, or one of our operators, which then is about a variable."""
        calls = (each for each in ast.walk(node) if isinstance(each, ast.Call))
        ours = {self._operator(call) for call in calls} - _OPERATORS_OF_PYTHON - {None}
        return bool(ours or self._named(node))

    def _rewritten(self, node: ast.expr) -> ast.expr:
        if not self._asks(node):
            return node
        span = self._nodes.span(node)
        match node:
            case ast.BoolOp():
                method = "all_" if isinstance(node.op, ast.And) else "any_"
                return self._nodes.term(method, span, *map(self._later, node.values))
            case ast.UnaryOp(op=ast.Not()):
                return self._nodes.term("not_", span, self._condition(node.operand))
            case ast.Compare():
                return self._compared(node)
            case ast.Name() if node.id in self._holes:
                return self._nodes.term("ref", span, ast.Constant(node.id))
            case ast.Call():
                return self._called(node)
            case ast.BinOp() if type(node.op) in SYMBOLS:
                return self._calculated(node)
        return self._opaque(node)

    def _calculated(self, node: ast.BinOp) -> ast.expr:
        span = self._nodes.span(node)
        symbol = ast.Constant(SYMBOLS[type(node.op)])
        shown = ast.Constant(self._shown(node))
        left = self._rewritten(node.left)
        right = self._rewritten(node.right)
        return self._nodes.term("calculated", span, left, symbol, right, shown)

    def _later(self, node: ast.expr) -> ast.expr:
        return self._nodes.at(lambda_of((), self._condition(node)), self._nodes.span(node))

    def _compared(self, node: ast.Compare) -> ast.expr:
        """Rewrite a comparison; a chain becomes one for each pair."""
        sides = [node.left, *node.comparators]
        pairs = []
        for left, relation, right in zip(sides, node.ops, sides[1:], strict=False):
            span = SourceSpan(self._nodes.span(left).start, self._nodes.span(right).end)
            word = ast.Constant(_RELATIONS[type(relation)])
            first = self._rewritten(left)
            second = self._rewritten(right)
            pairs.append(self._nodes.term("compare", span, first, word, second))
        if len(pairs) == 1:
            return pairs[0]
        span = self._nodes.span(node)
        later = [self._nodes.at(lambda_of((), pair), span) for pair in pairs]
        return self._nodes.term("all_", span, *later)

    def _called(self, node: ast.Call) -> ast.expr:
        span = self._nodes.span(node)
        operator = self._operator(node)
        if operator is not None:
            if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
                raise self._bad(f"`{operator}` takes plain arguments alone", node)
            arguments = map(self._rewritten, node.args)
            return self._nodes.term("called", span, ast.Constant(operator), *arguments)
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and self._is_text(function.value)
            and function.attr in _METHODS
            and len(node.args) == 1
            and not node.keywords
        ):
            word = ast.Constant(_METHODS[function.attr])
            parts = map(self._rewritten, (function.value, node.args[0]))
            return self._nodes.term("called", span, word, *parts)
        return self._opaque(node)

    def _opaque(self, node: ast.expr) -> ast.expr:
        holes = self._named(node)
        shown = ast.Constant(self._shown(node))
        named = tuple_of([ast.Constant(name) for name in holes])
        span = self._nodes.span(node)
        return self._nodes.term("opaque", span, named, lambda_of(holes, node), shown)

    def _shown(self, node: ast.expr) -> str:
        """The source text on one line."""
        span = self._nodes.span(node)
        return " ".join(self._nodes.text.text[span.start : span.end].split())

    def _bad(self, message: str, node: ast.AST) -> BadProgram:
        assert isinstance(node, ast.expr)
        span = self._nodes.span(node)
        return self._nodes.text.bad(message, span.start, span.end)
