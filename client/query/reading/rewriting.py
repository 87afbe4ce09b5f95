"""Rewrites a program's layout into Python functions.

def make(calls, build, *captured):
    async def program(context, *parameters):    preamble, conditions, body
    def decoder(*parameters):                   preamble, the decoder's arguments
    def model(*parameters):                     preamble, the model's expression
    return program, decoder, model

These names have a prefix, so programs cannot refer to them by accident.

A text may assign the variables that it receives: `options = options.split(",")`. These are
parameters with the received values as defaults.

Finds holes that are the last ones of a run: no await can follow them.

    "[X]"                       last
    if X: "a [Y]"               last
    else: "b [Z] c [W]"         Z is not, W is
    while True: "[V]"           never: the loop may repeat it

A hole is awaited, and so is everything else that could reach one. A missed one costs a request; a
found one must be correct.

The body is parsed with a 0 in place of each prompt, and the statements of the prompts take its
place. Strings in functions and classes that the program defines are no prompts.

    if x: "a [X]" where len(X) < 3        if x: 0
"""

import ast
import copy
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, TypeAlias

from client.query.conditions.operators import OPERATORS
from client.query.errors import BadProgram
from client.query.reading.clauses import Block, Layout, PromptText
from client.query.reading.nodes import (
    BUILD,
    CALLS,
    CONTEXT,
    Nodes,
    arguments_of,
    check_is_free,
    expression,
    load,
    names_bound,
    names_bound_anywhere,
    names_used,
    own_scope,
    parameters_of,
    plain_call,
    statements,
    tuple_of,
)
from client.query.reading.prompts import Prompt, PromptRewriter, prompt_of, template_parts
from client.query.reading.text import Fragment, SourceSpan, Text
from client.query.reading.where_clauses import Conjunct, WhereClauses

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
        self._strings = {_offset_of(prompt.span, self._text): prompt for prompt in layout.prompts}
        self.preamble, self.statements = statements_of(self._text, layout)
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
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            raise self._bad("`from __future__` in a program: put types in quotes instead", node)
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


def _offset_of(span: SourceSpan, text: Text) -> int:
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


MAKE = "__tandem_make"
_PROGRAM = "__tandem_program"
_DECODER = "__tandem_decoder"
_MODEL = "__tandem_model"
_WHERE = "__tandem_where"
_WORD = re.compile(r"\w+")
# Expressions in braces may bind names, too.
_WALRUS = re.compile(r"(\w+)\s*:=")
# Python 3.12 and later need the names of type parameters.
_EMPTY: dict[str, Any] = {"type_params": []} if "type_params" in ast.FunctionDef._fields else {}
# Words in programs that inspect names, or handle missing ones.
_LOOKING = re.compile(r"\b(?:globals|locals|vars|NameError|except|suppress|exec|eval)\b")
_Function: TypeAlias = ast.AsyncFunctionDef | ast.FunctionDef
# The name of the Context in programs, unless they bind it themselves.
_CONTEXT_FOR_PEOPLE = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenProgram:
    """A program in Python.

    module:         defines `make`
    used:           names that it reads, with their first places
    bound:          names that it binds
    given:          names that it both receives and binds: keyword parameters of its functions
    """

    module: ast.Module
    hole_names: frozenset[str]
    returns: bool
    used: Mapping[str, ast.Name]
    bound: frozenset[str]
    given: frozenset[str]
    has_decoder: bool
    has_model: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of a program: its function's name and parameters, and names in scope.

    is_callable(name): whether the surroundings bind the name to a callable
    is_module: it is a text of its own, so `global` in its functions refers to the program
    given:     the names that such a text receives
    """

    name: str
    parameters: inspect.Signature
    is_callable: Callable[[str], bool]
    is_module: bool = False
    given: frozenset[str] = frozenset()


def rewrite_program(nodes: Nodes, layout: Layout, around: Surroundings) -> RewrittenProgram:
    """The program in Python, without the parameters of `make`. Raises BadProgram."""
    return _Writer(nodes, layout, around).written()


class _Writer:
    """Rewrites one program."""

    def __init__(self, nodes: Nodes, layout: Layout, around: Surroundings) -> None:
        self._nodes = nodes
        self._text: Text = nodes.text
        self._layout = layout
        self._around = around
        self._body = Body(nodes, layout)
        self._holes = self._body.holes
        self._preamble = self._body.preamble
        self._given: frozenset[str] = frozenset()

    def written(self) -> RewrittenProgram:
        self._body.check(self._around.parameters.parameters.keys(), self._layout)
        if self._around.is_module:
            self._refuse_globals([*self._body.preamble, *self._body.statements])
        clauses = WhereClauses(self._nodes, self._holes, self._own_names())
        conditions = self._conditions(clauses)
        supports = {}
        if self._layout.distribution is not None:
            supports[self._layout.distribution.name] = self._layout.distribution
        rewriter = PromptRewriter(
            self._nodes,
            clauses,
            self._body.prompts,
            conditions,
            supports,
            self._rebound(),
        )
        prompts = PlacedPrompts(self._nodes, self._body, rewriter)
        self._preamble = prompts.visit_all(self._body.preamble)
        rewritten = prompts.visit_all(with_return(self._body.statements))
        mark_last(rewritten)
        bound = frozenset(names_bound([*self._preamble, *rewritten]))
        self._given = bound & self._around.given
        assigned = [_assigned(name, part.function) for name, part in conditions]
        functions: list[ast.AsyncFunctionDef | ast.FunctionDef] = [
            self._program([*self._unbound([*assigned, *rewritten]), *assigned, *rewritten]),
            *self._decoder(),
            *self._model(),
        ]
        used = names_used(ast.Module(list(functions), []))
        module = self._module(functions)
        return RewrittenProgram(
            module=module,
            hole_names=self._holes,
            returns=any(
                isinstance(node, ast.Return) and node.value is not None
                for node in own_scope(rewritten)
            ),
            used={name: node for name, node in used.items() if not name.startswith(CALLS)},
            bound=bound | {_CONTEXT_FOR_PEOPLE},
            given=self._given,
            has_decoder=self._layout.decoder is not None,
            has_model=self._layout.model is not None,
        )

    def _rebound(self) -> AbstractSet[str]:
        """The holes whose variables the program's own code assigns, too."""
        bound = names_bound_anywhere([*self._preamble, *self._body.up_to_last_prompt])
        return self._holes & bound.union(_WALRUS.findall(self._text.text))

    def _own_names(self) -> AbstractSet[str]:
        """Names that hide operators: those that the program binds, and callables in scope."""
        bound = names_bound(self._preamble) | names_bound(self._body.statements)
        parameters = set(self._around.parameters.parameters)
        words = set(_WORD.findall(self._text.text))
        around = {name for name in words if self._around.is_callable(name)}
        return bound | parameters | self._holes | around

    def _conditions(self, clauses: WhereClauses) -> list[tuple[str, Conjunct]]:
        """The program's own conditions, each with its name in the body."""
        if self._layout.where is None:
            return []
        fragment = self._text.slice(self._layout.where)
        condition = expression(self._text, fragment, "in the `where` clause")
        parts = clauses.conjuncts(condition)
        return [(f"{_WHERE}_{number}", part) for number, part in enumerate(parts)]

    def _unbound(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Statements that read the names which nothing here binds, so that unknown ones raise
        before any request. Not for programs that may inspect names."""
        if _LOOKING.search(self._text.text):
            return []
        tree = ast.Module(list(body), [])
        known = {
            _CONTEXT_FOR_PEOPLE,
            *names_bound_anywhere([*self._preamble, *body]),
            *self._around.parameters.parameters,
            *(node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)),
        }
        return [
            ast.copy_location(ast.Expr(node), node)
            for name, node in names_used(tree).items()
            if name not in known and name.lower() not in OPERATORS and not name.startswith(CALLS)
        ]

    def _program(self, body: list[ast.stmt]) -> ast.AsyncFunctionDef:
        span = self._whole()
        opening = copy.deepcopy(self._preamble)
        if self._asks_for_context(body):
            target = ast.Name(_CONTEXT_FOR_PEOPLE, ast.Store())
            opening.append(self._nodes.at(ast.Assign([target], load(CONTEXT)), span))
        parameters = parameters_of(self._around.parameters, CONTEXT, self._given)
        block = [*opening, *body] or [ast.Pass()]
        made = ast.AsyncFunctionDef(_PROGRAM, parameters, block, [], **_EMPTY)
        return self._nodes.at(made, span)

    def _refuse_globals(self, statements: Sequence[ast.stmt]) -> None:
        """In a text program each run has its own variables, those of a function."""
        for node in ast.walk(ast.Module(list(statements), [])):
            if isinstance(node, ast.Global):
                names_text = ", ".join(node.names)
                what = f"`global {names_text}`: the variables of a program are those of one run; "
                span = self._nodes.span(node)
                raise self._text.bad(f"{what}write `nonlocal {names_text}`", span.start, span.end)

    def _asks_for_context(self, body: Sequence[ast.stmt]) -> bool:
        name = _CONTEXT_FOR_PEOPLE
        is_used = name in names_used(ast.Module(list(body), []))
        is_bound = name in names_bound([*self._preamble, *body])
        is_parameter = name in self._around.parameters.parameters
        return is_used and not is_bound and not is_parameter

    def _decoder(self) -> list[ast.FunctionDef]:
        decoder = self._layout.decoder
        if decoder is None:
            return []
        span = decoder.span
        number = self._nodes.number(span)
        call = plain_call(CALLS, "decoder", [number, ast.Constant(decoder.name)])
        if decoder.arguments is not None and decoder.arguments.start < decoder.arguments.end:
            given = self._decoder_call(decoder.arguments)
            call.args.extend(given.args)
            call.keywords.extend(given.keywords)
        return [self._function(_DECODER, call, span)]

    def _decoder_call(self, arguments: SourceSpan) -> ast.Call:
        """The decoder's arguments, parsed with their brackets."""
        inner = self._text.slice(arguments)
        bracket = arguments.start - 1
        offsets = [bracket, bracket, *inner.offsets, arguments.end + 1]
        fragment = Fragment(f"_({inner.code})", offsets)
        call = expression(self._text, fragment, "in the decoder clause")
        assert isinstance(call, ast.Call)
        return call

    def _model(self) -> list[ast.FunctionDef]:
        span = self._layout.model
        if span is None:
            return []
        value = expression(self._text, self._text.slice(span), "in the `from` clause")
        return [self._function(_MODEL, self._nodes.call("model", span, value), span)]

    def _function(self, name: str, value: ast.expr, span: SourceSpan) -> ast.FunctionDef:
        block = [*copy.deepcopy(self._preamble), ast.Return(value)]
        parameters = parameters_of(self._around.parameters, None, self._given)
        return self._nodes.at(ast.FunctionDef(name, parameters, block, [], **_EMPTY), span)

    def _module(self, functions: Sequence[_Function]) -> ast.Module:
        """`make`; `captured` adds further parameters."""
        span = self._whole()
        given = ast.Return(tuple_of([load(function.name) for function in functions]))
        block: list[ast.stmt] = [*functions, given]
        make = ast.FunctionDef(MAKE, arguments_of([CALLS, BUILD]), block, [], **_EMPTY)
        return ast.Module([self._nodes.at(make, span)], [])

    def _whole(self) -> SourceSpan:
        blocks = self._layout.blocks
        return SourceSpan(blocks[0].span.start, blocks[-1].span.end) if blocks else SourceSpan(0, 0)


def _assigned(name: str, value: ast.expr) -> ast.stmt:
    made = ast.Assign([ast.Name(name, ast.Store())], value)
    for node in (made, made.targets[0]):
        ast.copy_location(node, value)
    return made
