"""Compiles the functions of a rewritten program, with their globals and closures.

Calls are the functions that they call besides their Context. Places are passed as numbers, since
code objects can only contain constants.

The variables of the function in which a query is decorated.

Programs can use them, although Python creates no closure for a docstring.

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
import inspect
import linecache
import re
import sys
import types
import weakref
import zlib
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import wraps
from inspect import iscoroutine
from itertools import islice
from pathlib import Path
from types import CellType, FrameType, MappingProxyType, NoneType
from typing import Any

from client.calls import MAX_VALUES
from client.query.conditions import build
from client.query.conditions.kinds import kind_of
from client.query.errors import BadCondition, BadProgram, Place, Source
from client.query.program import (
    Condition,
    DecoderClause,
    Decorator,
    Hole,
    ModelClause,
    Program,
    Subquery,
)
from client.query.reading.clauses import Layout
from client.query.reading.nodes import PLACED, Nodes, captured
from client.query.reading.rewriting import MAKE, Surroundings, rewrite_program
from client.query.reading.text import Text


@dataclass(frozen=True, slots=True)
class Enclosing:
    """values: of the bound variables. frame: of the function; None: there is none."""

    values: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    frame: FrameType | None = None

    def is_late(self, name: str, own_name: str) -> bool:
        """Whether a variable of the function is assigned after the decoration.

        The query's own name always is.
        """
        if self.frame is None:
            return False
        code = self.frame.f_code
        is_variable = name in code.co_varnames or name in code.co_cellvars
        return is_variable and (name == own_name or name not in self.values)


def enclosing(frame: FrameType | None) -> Enclosing:
    """The enclosing variables at a frame. Module names are globals, looked up late."""
    if frame is None or frame.f_locals is frame.f_globals:
        return Enclosing()
    # Names bound in a class body are not visible in methods.
    is_function = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return Enclosing(dict(frame.f_locals), frame if is_function else None)


class LateNames:
    """Owner of the cells of late names. Keeps the frame, as closures keep their variables."""

    def __init__(self, names: list[str], frame: FrameType) -> None:
        self.cells = {name: CellType() for name in names}
        self._frame = frame

    def look_up(self) -> None:
        """Fill the cells of names that have a value by now; Python raises for others if used."""
        values = self._frame.f_locals
        for name, cell in self.cells.items():
            if name in values:
                cell.cell_contents = values[name]


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

    def hole(
        self,
        name: str,
        number: int,
        kind: object,
        decorators: tuple[Decorator, ...],
        conditions: tuple[Condition, ...],
        support: tuple[str, ...] | None,
        is_last: bool = False,
    ) -> Hole:
        return Hole(
            name=name,
            place=self._places[number],
            kind=kind,
            decorators=decorators,
            conditions=conditions,
            support=support,
            is_last=is_last,
        )

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
        if isinstance(values, str) or not isinstance(values, Iterable):
            what = f"a distribution over {name} needs a list of strings. Given: {values!r}"
            raise BadProgram(what, self._places[number], self._source)
        given = list(islice(values, MAX_VALUES + 1))
        if len(given) > MAX_VALUES:
            what = f"a distribution over {name} has at most {MAX_VALUES} values. Given: more"
            raise BadProgram(what, self._places[number], self._source)
        texts = [value for value in given if isinstance(value, str) and value]
        if not given or len(texts) < len(given):
            what = f"a distribution over {name} needs strings that are not empty. Given: {given!r}"
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


_WORD = re.compile(r"\w+")
# The prefix of the qualified names of functions that a program defines.
_GENERATED = re.compile(rf"{MAKE}\.<locals>\.\w+\.<locals>\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """The names that a program can use: globals, closure cells, variables of enclosing functions.

    Precedence as in Python: cells, variables, globals.
    """

    globals: dict[str, Any]
    cells: Mapping[str, types.CellType] = field(default_factory=dict)
    around: Enclosing = field(default_factory=Enclosing)

    def has(self, name: str) -> bool:
        """Whether the name is known here."""
        return name in self.cells or name in self.around.values or name in self.globals

    def is_callable(self, name: str) -> bool:
        """Whether the name is bound here to a callable."""
        if name in self.cells:
            return _holds_callable(self.cells[name])
        if name in self.around.values:
            return callable(self.around.values[name])
        return callable(self.globals.get(name))


def compile_program(
    text: Text, layout: Layout, around: Surroundings, scope: Scope, filename: str
) -> Program:
    """The program of a layout. Raises BadProgram."""
    nodes = Nodes(text)
    program = rewrite_program(nodes, layout, around)
    late = _late(program.used, around.name, scope)
    if late is not None:
        scope = replace(scope, cells={**scope.cells, **late.cells})
    values = scope.around.values
    names = [name for name in program.used if name in scope.cells or name in values]
    captured(program.module, names)
    code = _by_own_names(_compiled(text, program.module, filename))
    words = set(_WORD.findall(text.text))
    around_it = {name: value for name, value in values.items() if name in words}
    calls = Calls(text.source, nodes.places, around_it)
    defined: dict[str, Any] = {}
    exec(code, scope.globals, defined)
    made_ = defined[MAKE](calls, build, *(values.get(name) for name in names))
    given = {name: scope.globals[name] for name in program.given}
    functions = iter([_bound(function, around, scope, given) for function in made_])
    body = next(functions)
    _shown(text.source, filename, body)
    taking = _taking(body, around)
    decoder = next(functions) if program.has_decoder else None
    model = next(functions) if program.has_model else None
    return Program(
        name=around.name,
        source=text.source,
        parameters=tuple(around.parameters.parameters),
        body=_looking_up(taking, late),
        hole_names=program.hole_names,
        returns=program.returns,
        decoder=decoder and _looking_up(decoder, late),
        model=model and _looking_up(model, late),
    )


def _late(used: Iterable[str], own_name: str, scope: Scope) -> LateNames | None:
    """The used names that the enclosing function binds later; None if there are none."""
    names = [
        name for name in used if name not in scope.cells and scope.around.is_late(name, own_name)
    ]
    frame = scope.around.frame
    return LateNames(names, frame) if names and frame is not None else None


def _looking_up(function: Callable[..., Any], late: LateNames | None) -> Callable[..., Any]:
    """Wraps a function so that late names are looked up first."""
    if late is None:
        return function

    @wraps(function)
    def called(*arguments: object, **keywords: object) -> Any:
        late.look_up()
        return function(*arguments, **keywords)

    return called


def _taking(body: types.FunctionType, around: Surroundings) -> Callable[..., Any]:
    """Wraps the body: an error about wrong arguments does not count its context."""

    @wraps(body)
    def called(context: object, /, *arguments: object, **keywords: object) -> Any:
        try:
            around.parameters.bind(*arguments, **keywords)
        except TypeError as error:
            raise TypeError(f"{around.name}() {error}") from None
        return body(context, *arguments, **keywords)

    return called


def free_names(text: Text, layout: Layout, around: Surroundings, scope: Scope) -> list[str]:
    """The unbound names that a program uses, in the order of their first places."""
    program = rewrite_program(Nodes(text), layout, around)
    known = program.hole_names | program.bound | set(dir(builtins))
    return [name for name in program.used if name not in known and not scope.has(name)]


def _bound(
    function: types.FunctionType, around: Surroundings, scope: Scope, given: Mapping[str, object]
) -> types.FunctionType:
    """The function with the closure cells of enclosing functions and its defaults.

    The cells of freshly compiled functions are separate, so assignments would not be shared.
    """
    own = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells = tuple(scope.cells.get(name, cell) for name, cell in own.items())
    made = types.FunctionType(function.__code__, function.__globals__, around.name, None, cells)
    made.__qualname__ = around.name
    parameters = around.parameters.parameters.values()
    declared = [each for each in parameters if each.default is not each.empty]
    named = [each for each in declared if each.kind == each.KEYWORD_ONLY]
    made.__defaults__ = tuple(each.default for each in declared if each not in named)
    made.__kwdefaults__ = {**{each.name: each.default for each in named}, **given}
    return made


def _holds_callable(cell: types.CellType) -> bool:
    try:
        return callable(cell.cell_contents)
    except ValueError:  # not bound yet
        return False


# Compiling


def _compiled(text: Text, module: ast.Module, filename: str) -> types.CodeType:
    # A node may occur at several holes; each is moved once.
    moved = {id(node): node for node in ast.walk(module) if isinstance(node, PLACED)}
    for node in moved.values():
        node.lineno += text.source.first_line - 1
        node.end_lineno = (node.end_lineno or node.lineno) + text.source.first_line - 1
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
    """The code with qualified names as in the program, for tracebacks."""
    constants = (
        _by_own_names(each) if isinstance(each, types.CodeType) else each for each in code.co_consts
    )
    own_name = _GENERATED.sub("", code.co_qualname)
    return code.replace(co_consts=tuple(constants), co_qualname=own_name)


def filename_of(source: Source) -> str:
    """The file name of the source in tracebacks."""
    if not source.name.startswith("<") and Path(source.name).is_file():
        return source.name
    return f"<{source.name.strip('<>')} {zlib.crc32(source.text.encode('utf-8', 'replace')):08x}>"


def _shown(source: Source, filename: str, program: types.FunctionType) -> None:
    """Make text without a file available to tracebacks, for the lifetime of the program."""
    if not filename.startswith("<"):
        return
    lines = ["\n"] * (source.first_line - 1) + source.text.splitlines(keepends=True)
    entry = (len(source.text), None, lines, filename)
    linecache.cache[filename] = entry
    weakref.finalize(program, _forget, filename, entry).atexit = False


def _forget(filename: str, entry: tuple[object, ...]) -> None:
    # Another program with the same text may have replaced the entry.
    if linecache.cache.get(filename) is entry:
        del linecache.cache[filename]
