"""Finds programs in functions: in the docstring, or as the body.

    async def f(x):                         async def f(x):
        '''argmax "Hi {x} [Y]"'''               "Hi {x} [Y]"
                                                return Y.strip()

It returns the program's place in the file and the names in scope there.
"""

import ast
import builtins
import inspect
from collections.abc import Set as AbstractSet
from types import FunctionType

from client.query.errors import BadProgram
from client.query.place import Source
from client.query.reading.compiled_functions import Scope
from client.query.reading.docstrings import has_holes, is_program
from client.query.reading.enclosing import Enclosing
from client.query.reading.expressions import statements
from client.query.reading.strings import content_of
from client.query.reading.text import SourceSpan, Text, normalized
from client.query.reading.tokens import tokens_of


def program_in(function: FunctionType) -> tuple[Source, SourceSpan]:
    """The source of a function, and the program's place in it. Raises BadProgram."""
    if function.__name__ == "<lambda>":
        raise BadProgram("a lambda is no query: a query is a function that is defined by `def`")
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return _from_docstring(function)
    name = function.__code__.co_filename
    source = Source(normalized("".join(lines)), name, max(first_line, 1))
    text = Text(source)
    whole = text.slice(SourceSpan(0, len(source.text)))
    for statement in statements(text, whole):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return source, _region(text, statement, _known(function))
    raise BadProgram(f"a query is a function with a body; {function.__name__} is none")


def _from_docstring(function: FunctionType) -> tuple[Source, SourceSpan]:
    """If there is no file: the docstring, with escapes resolved."""
    held = normalized(inspect.getdoc(function) or "")
    name = f"<{function.__name__}>"
    source = Source(held, name)
    if not is_program(Text(source), SourceSpan(0, len(held)), _known(function)):
        # A prompt: further prompts behind it would be lost.
        source = Source(repr(function.__doc__), name)
        held = held if _is_of_one_line(function) else ""
    if not held or not _does_nothing(function):
        what = f"the source of {function.__name__} cannot be read; put the program in its docstring"
        raise BadProgram(what)
    return source, SourceSpan(0, len(source.text))


def _does_nothing(function: FunctionType) -> bool:
    """Whether its code is that of a function with only a docstring."""
    word = "async def" if inspect.iscoroutinefunction(function) else "def"
    bodies = ("", " pass", " ...")
    return any(_work(function) == _work(_made(f"{word} f():\n 'x'\n{each}")) for each in bodies)


def _is_of_one_line(function: FunctionType) -> bool:
    """Whether all its code is on its first line: a docstring has no code."""
    code = function.__code__
    return {line for _, _, line in code.co_lines()} <= {code.co_firstlineno, None}


def _work(function: FunctionType) -> tuple[bytes, tuple[object, ...]]:
    # The first constant is the docstring.
    return function.__code__.co_code, function.__code__.co_consts[1:]


def _made(code: str) -> FunctionType:
    defined: dict[str, FunctionType] = {}
    exec(code, {}, defined)
    return defined["f"]


def _region(
    text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef, known: AbstractSet[str]
) -> SourceSpan:
    first = function.body[0]
    last = function.body[-1]
    span = SourceSpan(_start(text, first), text.offset_of_bytes(*_end(last)))
    if not _is_docstring(first):
        return span
    string = SourceSpan(_start(text, first), text.offset_of_bytes(*_end(first)))
    held = _held_by(text, string, known)
    if all(map(_is_nothing, function.body[1:])):
        return held or string
    if held is not None and has_holes(text, held):
        what = "a program in a docstring, and code behind it, which would not be run"
        raise text.bad(f"{what}: put both into the docstring", string.start, string.end)
    return span


def _known(function: FunctionType) -> AbstractSet[str]:
    code = function.__code__
    return {*code.co_varnames, *code.co_freevars, *function.__globals__, *dir(builtins)}


def _held_by(text: Text, docstring: SourceSpan, known: AbstractSet[str]) -> SourceSpan | None:
    """The program in a docstring of several lines, if it is one."""
    strings = tokens_of(text, docstring)
    content = content_of(strings[0])
    is_long = text.text[content.start - 3 : content.start] in ("'''", '"""')
    if len(strings) > 1 or not is_long:
        return None
    held = SourceSpan(content.start, content.stop)
    return held if is_program(text, held, known) else None


def _start(text: Text, statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement, *decorators], key=lambda node: node.lineno)
    start = text.offset_of_bytes(first.lineno, first.col_offset)
    # The place of a decorator begins behind `@`.
    return start if first is statement else text.text.rindex("@", 0, start)


def _end(statement: ast.stmt) -> tuple[int, int]:
    return statement.end_lineno or statement.lineno, statement.end_col_offset or 0


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _is_nothing(statement: ast.stmt) -> bool:
    """`pass` or `...`."""
    is_dots = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass) or (is_dots and not _is_docstring(statement))


def scope_of(function: FunctionType, around: Enclosing) -> Scope:
    """The scope of the function's code: globals, cells, variables of the enclosing function.

    Python creates cells for names used in the code, but not for those in a docstring.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return Scope(globals=function.__globals__, cells=dict(cells), around=around)
