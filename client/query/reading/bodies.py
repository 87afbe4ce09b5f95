"""A program's body as Python reads it: with a 0 in place of each prompt, and with their statements.

    if x: "a [X]" where len(X) < 3        if x: 0

Strings in functions and classes that the program defines are no prompts and stay unchanged.
"""

import __future__

import ast
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from client.query.errors import BadProgram
from client.query.reading.clauses import Block, Layout, PromptText
from client.query.reading.nodes import (
    Nodes,
    check_is_free,
    expression,
    own_scope,
    statements,
)
from client.query.reading.prompts import Prompt, PromptRewriter, prompt_of
from client.query.reading.template import template_parts
from client.query.reading.text import Fragment, SourceSpan, Text


def flags_of(nodes: Nodes, statements: Sequence[ast.stmt]) -> tuple[int, int]:
    """The number of such imports, and the compiler flags. Raises BadProgram."""
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


# A hole's name in a string.
HOLE = re.compile(r"(?<!\[)\[\s*([^\W\d]\w*)\s*[\]:]")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
# Statements that end a body, even in a branch.
# Expressions without effect: a string in one would be lost.
_IDLE = (ast.BinOp, ast.BoolOp, ast.IfExp, ast.Compare, ast.Tuple, ast.Attribute, ast.Subscript)


class Body:
    """The statements of a program's preamble and body, and the prompts among them."""

    def __init__(self, nodes: Nodes, layout: Layout) -> None:
        self._nodes = nodes
        self._text: Text = nodes.text
        self._strings = {_mark(prompt.span, self._text): prompt for prompt in layout.prompts}
        self.preamble, self.statements = statements_of(self._text, layout)
        first = self.preamble or self.statements
        num_futures, self.compiler_flags = flags_of(nodes, first)
        del first[:num_futures]
        self._prompts: dict[int, Prompt] = {}
        for node in own_scope(self.statements):
            if (found := self._string_at(node)) is not None:
                offset, string = found
                parts = template_parts(self._text, string.value)
                self._prompts[offset] = prompt_of(string, parts)
        self.holes = frozenset(hole.name for prompt in self.prompts for hole in prompt.holes)

    @property
    def prompts(self) -> Sequence[Prompt]:
        return tuple(self._prompts.values())

    @property
    def up_to_last_prompt(self) -> Sequence[ast.stmt]:
        """The statements up to the last prompt; behind it no condition is evaluated."""
        with_prompts = [
            index
            for index, statement in enumerate(self.statements)
            if any(self._string_at(node) is not None for node in own_scope([statement]))
        ]
        return self.statements[: with_prompts[-1] + 1] if with_prompts else ()

    def found(self, node: ast.AST) -> Prompt | PromptText | None:
        """The prompt that a statement replaces; unparsed if in a function."""
        found = self._string_at(node)
        return None if found is None else self._prompts.get(found[0], found[1])

    def _string_at(self, node: ast.AST) -> tuple[int, PromptText] | None:
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            return None
        offset = self._nodes.span(node.value).start
        string = self._strings.get(offset)
        return None if string is None else (offset, string)

    # Checks

    def check(self, parameters: AbstractSet[str], layout: Layout) -> None:
        """Raises BadProgram for mistakes that Python would accept."""
        for prompt in self.prompts:
            for hole in prompt.holes:
                if hole.name in parameters:
                    what = f"the hole {hole.name} has the name of a parameter"
                    raise self._text.bad(what, hole.span.start, hole.span.end)
        if layout.distribution is not None:
            layout.distribution.check(self._text, sorted(self.holes), "the program")
        for node in own_scope(self.preamble):
            if isinstance(node, ast.Expr) and self._string_at(node) is not None:
                raise self._bad("a prompt in front of the decoder clause", node)
        whole = [*self.preamble, *self.statements]
        for node in own_scope(whole):
            self._check_own(node)
        for node in ast.walk(ast.Module(whole, [])):
            self._check_any(node)

    def _check_own(self, node: ast.AST) -> None:
        if isinstance(node, ast.Yield | ast.YieldFrom):
            raise self._bad("`yield` cannot stand in a program", node)
        if isinstance(node, ast.Expr):
            self._check_lost(node)

    def _check_any(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name):
            check_is_free(self._text, node)
        if isinstance(node, _FUNCTIONS):
            self._check_function(node)
        if isinstance(node, ast.alias) and node.name == "*":
            # Python's message would say that it is allowed in modules only, which misleads.
            raise self._bad("`*` in a program: write the names that you import", node)

    def _check_lost(self, statement: ast.Expr) -> None:
        """Refuse a string with a hole in an unused expression: it was meant as a prompt."""
        for node in _idle(statement.value):
            match node:
                case ast.Constant(value=str() as value) if HOLE.search(value):
                    raise self._bad(
                        "a prompt is strings alone: put values into it with braces, "
                        "and choose between prompts with `if`",
                        statement,
                    )

    def _check_function(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Refuse a prompt in a function, but in its docstring. Decorated ones may be queries."""
        for node in own_scope(function.body):
            found = self._string_at(node)
            if found is None:
                continue
            is_docstring = node is function.body[0] and len(function.body) > 1
            has_hole = HOLE.search(found[1].value.code) is not None
            is_lost = has_hole and not is_docstring and not function.decorator_list
            if found[1].where or found[1].distribution or is_lost:
                raise self._text.bad(
                    "a prompt in a function that the program defines; prompts stand in the "
                    "program itself, or in a query of their own",
                    found[1].span.start,
                    found[1].span.end,
                )

    def _bad(self, message: str, node: ast.expr | ast.stmt | ast.alias) -> BadProgram:
        span = self._nodes.span(node)
        return self._text.bad(message, span.start, span.end)


def statements_of(text: Text, layout: Layout) -> tuple[list[ast.stmt], list[ast.stmt]]:
    """The statements of preamble and body, with a 0 for each prompt. Raises BadProgram."""
    code = _without_prompts(text.text, layout.prompts)
    preamble = () if layout.preamble is None else (layout.preamble,)
    return _parsed(text, code, preamble), _parsed(text, code, layout.blocks)


def _parsed(text: Text, code: str, blocks: Sequence[Block]) -> list[ast.stmt]:
    """The statements of some parts of the text, each with its lines and columns."""
    made: list[ast.stmt] = []
    for block in blocks:
        start = block.span.start
        end = block.span.end
        offsets = [*[start] * len(block.margin), *range(start, end + 1)]
        shown = Fragment(block.margin + code[start:end], offsets)
        made.extend(statements(text, shown))
    return made


def _idle(value: ast.expr) -> Iterator[ast.expr]:
    """The operands of an unused expression, and the string whose method it calls."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        yield value.func.value
    elif isinstance(value, _IDLE):
        for child in ast.iter_child_nodes(value):
            if isinstance(child, ast.expr):
                yield child
                yield from _idle(child)


def _mark(span: SourceSpan, text: Text) -> int:
    """The offset of the 0 that replaces a prompt."""
    return span.start + ("\n" in text.text[span.start : span.end])


def _without_prompts(text: str, prompts: Sequence[PromptText]) -> str:
    """The text with a 0 for each prompt; all other offsets stay."""
    parts = []
    begin = 0
    for prompt in prompts:
        parts.append(text[begin : prompt.span.start])
        parts.append(_placeholder(text[prompt.span.start : prompt.span.end]))
        begin = prompt.span.end
    return "".join([*parts, text[begin:]])


def _placeholder(prompt: str) -> str:
    if "\n" not in prompt:
        return "0".ljust(len(prompt))
    blank = "".join(char if char == "\n" else " " for char in prompt)
    return f"(0{blank[2:-1]})"


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
