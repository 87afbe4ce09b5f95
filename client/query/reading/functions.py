"""Functions that hold programs, in their docstring or as their body.

    async def f(x):                         async def f(x):
        '''argmax "Hi {x} [Y]"'''               "Hi {x} [Y]"
                                                return Y.strip()

It finds where the program stands in the file, and which names it sees there.
"""

import ast
import inspect
import re
from types import FunctionType

from client.query.errors import BadProgram
from client.query.place import Source
from client.query.reading.clauses import layout_of
from client.query.reading.enclosing import Enclosing
from client.query.reading.expressions import statements
from client.query.reading.making import Scope
from client.query.reading.strings import content_of
from client.query.reading.text import Span, Text, normalized
from client.query.reading.tokens import tokens_of
from client.query.reading.words import DECODERS

_PROMPT_OR_DECODER = re.compile(
    rf"^[ \t]*(?:[rRfFuU]{{0,2}}['\"]|(?:{'|'.join(DECODERS)})(?:$|[\s(\"']))",
    re.MULTILINE | re.IGNORECASE,
)
# `if X: "a [Y]"`: so a program may ask, and nowhere else.
_PROMPT_BEHIND_COLON = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:if|elif|else|for|while|with|try|except|finally)\b"
    r"[^\n]*:[ \t]*['\"]",
    re.MULTILINE,
)


def program_in(function: FunctionType) -> tuple[Source, Span]:
    """The source of a function, and where in it the program stands. Raises BadProgram."""
    if function.__name__ == "<lambda>":
        raise BadProgram("a lambda is no query: a query is a function that is defined by `def`")
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return _from_docstring(function)
    name = function.__code__.co_filename
    source = Source(normalized("".join(lines)), name, max(first_line, 1))
    text = Text(source)
    whole = text.slice(Span(0, len(source.text)))
    for statement in statements(text, whole):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return source, _region(text, statement)
    raise BadProgram(f"a query is a function with a body; {function.__name__} is none")


def _from_docstring(function: FunctionType) -> tuple[Source, Span]:
    """Without a file, what Python keeps of a function: its docstring, escapes read."""
    held = inspect.getdoc(function)
    if held is None:
        what = f"the source of {function.__name__} cannot be read; put the program in its docstring"
        raise BadProgram(what)
    source = Source(normalized(held), f"<{function.__name__}>")
    return source, Span(0, len(source.text))


def _region(text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Span:
    first, last = function.body[0], function.body[-1]
    span = Span(_start(text, first), text.offset_of_bytes(*_end(last)))
    if not _is_docstring(first):
        return span
    string = Span(_start(text, first), text.offset_of_bytes(*_end(first)))
    held = _held_by(text, string)
    if all(map(_is_nothing, function.body[1:])):
        return held or string
    if held is not None and _asks(text, held):
        what = "a program in a docstring, and code behind it, which would not be run"
        raise text.bad(f"{what}: put both into the docstring", string.start, string.end)
    return span


def _held_by(text: Text, docstring: Span) -> Span | None:
    """What a docstring of several lines holds, if it looks like a program."""
    strings = tokens_of(text, docstring)
    content = content_of(strings[0])
    is_long = text.text[content.start - 3 : content.start] in ("'''", '"""')
    held = text.text[content.start : content.stop]
    if len(strings) > 1 or not is_long:
        return None
    span = Span(content.start, content.stop)
    is_plain = _PROMPT_OR_DECODER.search(held) is not None
    is_held = is_plain or (_PROMPT_BEHIND_COLON.search(held) is not None and _asks(text, span))
    return span if is_held else None


def _asks(text: Text, held: Span) -> bool:
    """Whether it is a program with holes; a prompt may have lines that begin with quotes, too."""
    try:
        prompts = layout_of(text, held).prompts
    except BadProgram:
        return False
    return any("[" in prompt.value.code for prompt in prompts)


def _start(text: Text, statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement, *decorators], key=lambda node: node.lineno)
    start = text.offset_of_bytes(first.lineno, first.col_offset)
    # A decorator's place is behind its sign.
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
    """What the function's code sees: its globals and cells, and names of the function around it.

    Python closes over names that the code uses, and knows nothing of those in a docstring.
    """
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return Scope(globals=function.__globals__, cells=dict(cells), around=around)
