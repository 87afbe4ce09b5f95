"""Rewrites a program's layout into Python functions, and compiles them in their scope.

def make(calls, build, *captured):
    async def program(context, *parameters):    preamble, conditions, body
    def decoder(*parameters):                   preamble, the decoder's arguments
    def model(*parameters):                     preamble, the model's expression
    return program, decoder, model

These names have a prefix, so programs cannot refer to them by accident. Calls are the functions
that they call besides their Context; places are passed as numbers, since code objects can only
contain constants.

A text may assign the variables that it receives: `options = options.split(",")`. These are
parameters with the received values as defaults.

The body is parsed with a 0 in place of each prompt, and the statements of the prompts take its
place. Strings in functions and classes that the program defines are no prompts.

    if x: "a [X]" where len(X) < 3        if x: 0

Programs can use the variables of the function in which a query is decorated, although Python
creates no closure for a docstring.

    def tower():
        word = "up"
        @query
        def climb(n):
            '''"{word}[X: climb(n - 1)]"'''        word: its value here; climb: bound after this
        return climb

A variable with a value at the decoration keeps that value. One that is assigned later (the query's
own name, another query's) is looked up when the program is run, as in a closure.
"""

import ast
import builtins
import copy
import inspect
import re
import sys
import types
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from inspect import iscoroutine
from itertools import islice
from pathlib import Path
from types import CellType, FrameType, MappingProxyType, NoneType
from typing import Any, TypeAlias

from client.calls import MAX_VALUES
from client.query.conditions import terms
from client.query.conditions.kinds import kind_of
from client.query.errors import BadCondition, BadProgram, Place, Source
from client.query.program import (
    DecoderClause,
    Decorator,
    Hole,
    ModelClause,
    Program,
    Subquery,
)
from client.query.reading.clauses import Block, Layout, PromptText
from client.query.reading.nodes import (
    BUILD,
    CALLS,
    CONTEXT,
    PLACED,
    SCOPES,
    Nodes,
    arguments_of,
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
from client.query.reading.prompts import (
    Conjunct,
    Prompt,
    PromptRewriter,
    WhereClauses,
    template_parts,
)
from client.query.reading.text import Fragment, SourceSpan, Text, blank

# A hole's name in a string.
HOLE = re.compile(r"(?<!\[)\[\s*([^\W\d]\w*)\s*[\]:]")


class Body:
    """The statements of a program's preamble and body, and the prompts among them."""

    def __init__(self, nodes: Nodes, layout: Layout) -> None:
        """Raises BadProgram, also for mistakes that Python would accept."""
        self._nodes = nodes
        self._text: Text = nodes.text
        self._strings = {_offset_of(prompt.span, self._text): prompt for prompt in layout.prompts}
        self.preamble, self.statements = statements_of(self._text, layout)
        self._prompts: dict[int, Prompt] = {}
        for statement in self.preamble:
            self._read(statement, is_own=True)
        for prompt in self.prompts:
            what = "a prompt in front of the decoder clause"
            raise self._text.bad(what, prompt.string.span)
        for statement in self.statements:
            self._read(statement, is_own=True)
        self.holes = frozenset(hole.name for prompt in self.prompts for hole in prompt.holes)
        if layout.distribution is not None:
            layout.distribution.check(self._text, sorted(self.holes), "the program")

    @property
    def prompts(self) -> Sequence[Prompt]:
        return tuple(self._prompts.values())

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

    def _read(self, node: ast.AST, *, is_own: bool) -> None:
        """Read the prompts in a tree, and refuse mistakes. `is_own`: it is in no inner scope."""
        match node:
            case ast.Expr() if is_own and (found := self._string_at(node)) is not None:
                offset, string = found
                self._prompts[offset] = Prompt(string, template_parts(self._text, string.value))
            case ast.Expr() if is_own and _has_hole(node.value):
                raise self._nodes.bad(
                    "a prompt is strings alone: put values into it with braces, "
                    "and choose between prompts with `if`",
                    node,
                )
            case ast.Yield() | ast.YieldFrom() if is_own:
                raise self._nodes.bad("`yield` cannot stand in a program", node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._check_function(node)
        for child in ast.iter_child_nodes(node):
            self._read(child, is_own=is_own and not isinstance(node, SCOPES))

    # Checks

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
                    found[1].span,
                )


def _has_hole(node: ast.AST) -> bool:
    """Whether a string among the operands has one, or the string whose method is called."""
    match node:
        case ast.Constant(str() as value):
            return HOLE.search(value) is not None
        case ast.Call():
            return isinstance(node.func, ast.Attribute) and _has_hole(node.func)
    return any(map(_has_hole, ast.iter_child_nodes(node)))


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
    return f"(0{blank(prompt)[2:-1]})"


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
    """Mark the hole of a rewritten body, outside of blocks, that no `await` follows: `is_last`.

    Everything that could reach a hole is awaited.
    """
    for statement in reversed(statements):
        match statement:
            case ast.Assign(
                value=ast.Await(
                    ast.Call(ast.Attribute(ast.Name(name), "hole"), [ast.Call() as made])
                )
            ) if name == CONTEXT:
                made.args.append(ast.copy_location(ast.Constant(True), made))
        if any(isinstance(node, _AWAITING) for node in ast.walk(statement)):
            return


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
_Function: TypeAlias = ast.AsyncFunctionDef | ast.FunctionDef
# The name of the Context in programs, unless they bind it themselves.
_CONTEXT_FOR_PEOPLE = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """A program's name and parameters, and the names that it can use.

    cells:  of its function's closure, which go before its globals
    frame:  the function in which it is decorated, with the `values` of its variables by then
    given:  the names that a text receives, which is a module of its own; None: it is no text
    """

    name: str
    parameters: inspect.Signature
    globals: dict[str, Any]
    cells: Mapping[str, CellType] = field(default_factory=dict)
    frame: FrameType | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    given: AbstractSet[str] | None = None

    def has(self, name: str) -> bool:
        """Whether the name is known here."""
        return name in self.cells or name in self.values or name in self.globals

    def is_callable(self, name: str) -> bool:
        """Whether the name is bound here to a callable."""
        if name in self.cells:
            with suppress(ValueError):  # not bound yet
                return callable(self.cells[name].cell_contents)
            return False
        return callable(self.values.get(name, self.globals.get(name)))

    def is_late(self, name: str) -> bool:
        """Whether the function around it assigns the name after the decoration, as it does the
        query's own."""
        if self.frame is None or name in self.cells:
            return False
        code = self.frame.f_code
        # Names bound in a class body are not visible in methods.
        is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        is_variable = name in code.co_varnames or name in code.co_cellvars
        return is_function and is_variable and (name == self.name or name not in self.values)


class _PythonProgram:
    """A program rewritten in Python.

    used:  names that it reads, with their first places
    bound: names that it binds
    given: names that it both receives and binds: keyword parameters of its functions
    """

    def __init__(self, nodes: Nodes, layout: Layout, scope: Scope) -> None:
        self._nodes = nodes
        self._text: Text = nodes.text
        self._layout = layout
        self._scope = scope
        self._body = Body(nodes, layout)
        self.holes = self._body.holes
        self._check_hole_names()
        self._preamble = self._body.preamble
        if scope.given is not None:
            self._refuse_globals([*self._preamble, *self._body.statements])
        clauses = WhereClauses(nodes, self.holes, self._own_names())
        conditions = self._conditions(clauses)
        rewriter = PromptRewriter(
            nodes, clauses, self._body.prompts, conditions, layout.distribution, self._rebound()
        )
        prompts = PlacedPrompts(nodes, self._body, rewriter)
        self._preamble = prompts.visit_all(self._preamble)
        rewritten = prompts.visit_all(with_return(self._body.statements))
        mark_last(rewritten)
        bound = frozenset(names_bound([*self._preamble, *rewritten]))
        self.bound = bound | {_CONTEXT_FOR_PEOPLE}
        self.given = bound & (scope.given or frozenset())
        assigned = [_assigned(name, part.function) for name, part in conditions]
        self._functions: list[_Function] = [
            self._program([*assigned, *rewritten]),
            *self._decoder(),
            *self._model(),
        ]
        used = names_used(ast.Module(list(self._functions), []))
        self.used = {name: node for name, node in used.items() if not name.startswith(CALLS)}
        self.returns = any(
            isinstance(node, ast.Return) and node.value is not None for node in own_scope(rewritten)
        )

    def module(self, captured: Sequence[str]) -> ast.Module:
        """The module of `make`, whose functions capture these names."""
        names = [load(function.name) for function in self._functions]
        block: list[ast.stmt] = [*self._functions, ast.Return(tuple_of(names))]
        parameters = arguments_of(", ".join([CALLS, BUILD, *captured]))
        make = ast.FunctionDef(MAKE, parameters, block, [], **_EMPTY)
        return ast.Module([self._nodes.at(make, self._whole())], [])

    def _check_hole_names(self) -> None:
        for hole in (hole for prompt in self._body.prompts for hole in prompt.holes):
            if hole.name in self._scope.parameters.parameters:
                what = f"the hole {hole.name} has the name of a parameter"
                raise self._text.bad(what, hole.span)

    def _rebound(self) -> AbstractSet[str]:
        """The holes whose variables the program's own code assigns, too."""
        bound = names_bound_anywhere([*self._preamble, *self._body.statements])
        return self.holes & bound.union(_WALRUS.findall(self._text.text))

    def _own_names(self) -> AbstractSet[str]:
        """Names that hide operators: those that the program binds, and callables in scope."""
        bound = names_bound(self._preamble) | names_bound(self._body.statements)
        parameters = set(self._scope.parameters.parameters)
        words = set(_WORD.findall(self._text.text))
        around = {name for name in words if self._scope.is_callable(name)}
        return bound | parameters | self.holes | around

    def _conditions(self, clauses: WhereClauses) -> list[tuple[str, Conjunct]]:
        """The program's own conditions, each with its name in the body."""
        if self._layout.where is None:
            return []
        fragment = self._text.slice(self._layout.where)
        condition = expression(self._text, fragment, "in the `where` clause")
        parts = clauses.conjuncts(condition)
        return [(f"{_WHERE}_{number}", part) for number, part in enumerate(parts)]

    def _program(self, body: list[ast.stmt]) -> ast.AsyncFunctionDef:
        span = self._whole()
        opening = copy.deepcopy(self._preamble)
        if self._asks_for_context(body):
            target = ast.Name(_CONTEXT_FOR_PEOPLE, ast.Store())
            opening.append(self._nodes.at(ast.Assign([target], load(CONTEXT)), span))
        parameters = parameters_of(self._scope.parameters, CONTEXT, self.given)
        block = [*opening, *body] or [ast.Pass()]
        made = ast.AsyncFunctionDef(_PROGRAM, parameters, block, [], **_EMPTY)
        return self._nodes.at(made, span)

    def _refuse_globals(self, statements: Sequence[ast.stmt]) -> None:
        """In a text program each run has its own variables, those of a function."""
        for node in ast.walk(ast.Module(list(statements), [])):
            if isinstance(node, ast.Global):
                names_text = ", ".join(node.names)
                what = f"`global {names_text}`: the variables of a program are those of one run; "
                raise self._nodes.bad(f"{what}write `nonlocal {names_text}`", node)

    def _asks_for_context(self, body: Sequence[ast.stmt]) -> bool:
        name = _CONTEXT_FOR_PEOPLE
        is_used = name in names_used(ast.Module(list(body), []))
        is_bound = name in names_bound([*self._preamble, *body])
        is_parameter = name in self._scope.parameters.parameters
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
        parameters = parameters_of(self._scope.parameters, None, self.given)
        return self._nodes.at(ast.FunctionDef(name, parameters, block, [], **_EMPTY), span)

    def _whole(self) -> SourceSpan:
        blocks = self._layout.blocks
        return SourceSpan(blocks[0].span.start, blocks[-1].span.end) if blocks else SourceSpan(0, 0)


def _assigned(name: str, value: ast.expr) -> ast.stmt:
    made = ast.Assign([ast.Name(name, ast.Store())], value)
    for node in (made, made.targets[0]):
        ast.copy_location(node, value)
    return made


class Calls:
    """Makes holes, clauses and terms with their places; one for each program."""

    def __init__(
        self,
        source: Source,
        places: list[Place],
        around: dict[str, object],
    ) -> None:
        """`around`: variables of the enclosing function, for quoted types."""
        self._source = source
        self._places = places
        self._around = around

    def place(self, number: int) -> Place:
        return self._places[number]

    # Prompts

    def recalled(self, value: object) -> object:
        """A recalled value. Raises TypeError for a coroutine that was not awaited."""
        if iscoroutine(value):
            value.close()
            raise TypeError("a call of an async function is not awaited; write {await ...}")
        return value

    # Holes

    def hole(self, name: str, number: int, *parts: Any) -> Hole:
        return Hole(name, self._places[number], *parts)

    def decorator(self, number: int, function: object) -> Decorator:
        if not callable(function):
            what = f"behind '@' comes a function. Given: {function!r}"
            raise BadProgram(what, self._places[number], self._source)
        return Decorator(function, self._places[number])

    def kind(self, number: int, value: object) -> object:
        """The annotation of a hole; a query becomes a Subquery."""
        return self._kind(number, value, sys._getframe(1))

    def called_kind(
        self,
        number: int,
        function: Callable[..., object],
        /,
        *arguments: object,
        **keywords: object,
    ) -> object:
        """A call as annotation; the call of a query is deferred."""
        program = _program_of(function)
        if program is None:
            return self._kind(number, function(*arguments, **keywords), sys._getframe(1))
        return Subquery(program, arguments, MappingProxyType(keywords))

    def _kind(self, number: int, value: object, body: FrameType) -> object:
        program = _program_of(value)
        if program is not None:
            return Subquery(program)
        try:
            # As in annotations, None means its type.
            names = ChainMap(body.f_locals, self._around, body.f_globals)
            value = NoneType if value is None else value
            kind = kind_of(value, names)
        except BadCondition as error:
            raise BadCondition(error.message, self._places[number], self._source) from error
        # The names that a type of JSON has in quotes are those of this run.
        return value if kind.schema is None else kind

    def support(self, number: int, name: str, values: object) -> tuple[str, ...]:
        """The values of a distribution. Raises BadProgram."""
        given = []
        if isinstance(values, Iterable) and not isinstance(values, str):
            given = list(islice(values, MAX_VALUES + 1))
        texts = [value for value in given if isinstance(value, str) and value]
        rule = None
        if len(given) > MAX_VALUES:
            rule = f"has at most {MAX_VALUES} values. Given: more"
        elif not given or len(texts) < len(given):
            rule = f"needs a list of strings that are not empty. Given: {given or values!r}"
        if rule is not None:
            what = f"a distribution over {name} {rule}"
            raise BadProgram(what, self._places[number], self._source)
        return tuple(dict.fromkeys(texts))

    # Clauses

    def decoder(
        self, number: int, name: str, /, *arguments: object, **options: object
    ) -> DecoderClause:
        return DecoderClause(name, arguments, MappingProxyType(options), self._places[number])

    def model(self, number: int, value: object) -> ModelClause:
        return ModelClause(value, self._places[number])


def _program_of(value: object) -> Program | None:
    program = getattr(value, "program", None)
    return program if isinstance(program, Program) else None


# The prefix of the qualified names of functions that a program defines.
_GENERATED = re.compile(rf"{MAKE}\.<locals>\.\w+\.<locals>\.")


def compile_program(text: Text, layout: Layout, scope: Scope, filename: str) -> Program:
    """The program of a layout. Raises BadProgram."""
    nodes = Nodes(text)
    program = _PythonProgram(nodes, layout, scope)
    late = {name: CellType() for name in program.used if scope.is_late(name)}
    values = {name: CellType(value) for name, value in scope.values.items()}
    cells = {**values, **late, **scope.cells}
    names = [name for name in program.used if name in cells]
    code = _by_own_names(_compiled(text, program.module(names), filename))
    words = set(_WORD.findall(text.text))
    around = {name: value for name, value in scope.values.items() if name in words}
    calls = Calls(text.source, nodes.places, around)
    defined: dict[str, Any] = {}
    exec(code, scope.globals, defined)
    given = {name: scope.globals[name] for name in program.given}
    # What they capture is in cells that replace those of `make`.
    made = defined[MAKE](calls, terms, *(None for _ in names))
    functions = {each.__name__: _bound(each, scope, cells, given) for each in made}
    body = functions[_PROGRAM]
    decoder = functions.get(_DECODER)
    model = functions.get(_MODEL)
    return Program(
        name=scope.name,
        source=text.source,
        parameters=tuple(scope.parameters.parameters),
        body=_looking_up(_taking(body, scope.name, scope.parameters), late, scope.frame),
        hole_names=program.holes,
        returns=program.returns,
        decoder=decoder and _looking_up(decoder, late, scope.frame),
        model=model and _looking_up(model, late, scope.frame),
    )


def _looking_up(
    function: Callable[..., Any], late: Mapping[str, CellType], frame: FrameType | None
) -> Callable[..., Any]:
    """Wraps a function so that late names are looked up first; Python raises for those without a
    value, if they are used."""
    if not late or frame is None:
        return function

    @wraps(function)
    def called(*arguments: object, **keywords: object) -> Any:
        values = frame.f_locals
        for name, cell in late.items():
            if name in values:
                cell.cell_contents = values[name]
        return function(*arguments, **keywords)

    return called


def _taking(
    body: types.FunctionType, name: str, parameters: inspect.Signature
) -> Callable[..., Any]:
    """Wraps the body: an error about wrong arguments does not count its context."""

    @wraps(body)
    def called(context: object, /, *arguments: object, **keywords: object) -> Any:
        try:
            parameters.bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        return body(context, *arguments, **keywords)

    return called


def free_names(text: Text, layout: Layout, scope: Scope) -> list[str]:
    """The unbound names that a program uses, in the order of their first places."""
    program = _PythonProgram(Nodes(text), layout, scope)
    known = program.holes | program.bound | set(dir(builtins))
    return [name for name in program.used if name not in known and not scope.has(name)]


def _bound(
    function: types.FunctionType,
    scope: Scope,
    known: Mapping[str, CellType],
    given: Mapping[str, object],
) -> types.FunctionType:
    """The function with these closure cells and its defaults."""
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = tuple(known.get(name, cell) for name, cell in own.items())
    made = types.FunctionType(function.__code__, function.__globals__, scope.name, None, cells)
    made.__qualname__ = scope.name
    parameters = scope.parameters.parameters.values()
    declared = [each for each in parameters if each.default is not each.empty]
    named = [each for each in declared if each.kind == each.KEYWORD_ONLY]
    made.__defaults__ = tuple(each.default for each in declared if each not in named)
    made.__kwdefaults__ = {**{each.name: each.default for each in named}, **given}
    return made


# Compiling


def _compiled(text: Text, module: ast.Module, filename: str) -> types.CodeType:
    num_above = text.source.first_line - 1
    # A node may occur at several holes; each is moved once.
    moved = {id(node): node for node in ast.walk(module) if num_above and hasattr(node, "lineno")}
    for node in moved.values():
        assert isinstance(node, PLACED)
        node.lineno += num_above
        node.end_lineno = (node.end_lineno or node.lineno) + num_above
    try:
        code: types.CodeType = compile(module, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        line = (error.lineno or 1) - text.source.first_line + 1
        start = text.offset_of_bytes(line, max((error.offset or 1) - 1, 0))
        raise text.bad(error.msg, start) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise text.bad(str(error) or "the code is nested too deeply", 0) from None
    return code


def _by_own_names(code: types.CodeType) -> types.CodeType:
    """The code with qualified names as in the program, for tracebacks and prompts."""
    constants: list[object] = []
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            each = _by_own_names(each)
        # The name of a class is a constant of its body.
        constants.append(_GENERATED.sub("", each) if isinstance(each, str) else each)
    own_name = _GENERATED.sub("", code.co_qualname)
    return code.replace(co_consts=tuple(constants), co_qualname=own_name)


def filename_of(source: Source) -> str:
    """The file name of the source in tracebacks."""
    is_file = not source.name.startswith("<") and Path(source.name).is_file()
    return source.name if is_file else f"<{source.name.strip('<>')}>"
