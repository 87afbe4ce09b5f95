"""The public functions that parse programs.

read            text programs (decoder, body, from, where, distribute) and plain bodies
read_function   functions whose docstring or whose body is a program
read_template   one prompt and its condition

A docstring contains a program or is itself a prompt:

    "Hi {x} [Y]"                 a program: a line begins with a quote, or with a decoder,
    if x: "Hi {x} [Y]"           or with a block whose statement is a prompt
    Say hi to {x}: [Y]           a prompt: anything else with a hole
    return await ask(x)          refused: it asks for nothing
"""

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FrameType, FunctionType, MappingProxyType
from typing import Any

from client.query.errors import BadProgram, Source, TrimmedTracebacks
from client.query.program import Program
from client.query.reading import program_text
from client.query.reading.clauses import (
    DECODER_WORDS,
    Block,
    Layout,
    PromptText,
    layout_of,
)
from client.query.reading.compiled_functions import (
    HOLE,
    Scope,
    compile_program,
    filename_of,
    free_names,
)
from client.query.reading.nodes import statements
from client.query.reading.text import (
    Fragment,
    SourceSpan,
    Text,
    content_of,
    normalized,
    tokens_of,
)

_PROMPT_OR_DECODER = re.compile(
    rf"^[ \t]*(?:[rRfFuU]{{0,2}}['\"]|(?:{'|'.join(DECODER_WORDS)})(?:$|[\s(\"']))",
    re.MULTILINE | re.IGNORECASE,
)
# `if X: "a [Y]"`, even if the rest is invalid.
_PROMPT_BEHIND_COLON = re.compile(
    r"^[ \t]*(?:async[ \t]+)?(?:if|elif|else|for|while|with|try|except|finally|match|case)\b"
    r"[^\n]*:[ \t]*[rRfFuU]{0,2}['\"]",
    re.MULTILINE,
)


def is_program(shown: str) -> bool:
    """Whether a text is a program, and not itself a prompt."""
    if _PROMPT_OR_DECODER.search(shown):
        return True
    return _PROMPT_BEHIND_COLON.search(shown) is not None and HOLE.search(shown) is not None


def program_in(function: FunctionType) -> tuple[Source, SourceSpan]:
    """The source of a function, and the program's place in it. Raises BadProgram."""
    if function.__name__ == "<lambda>":
        raise BadProgram("a lambda is no query: a query is a function that is defined by `def`")
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError):
        what = f"the source of {function.__name__} cannot be read"
        raise BadProgram(f"{what}: write it in a file, or give its text to `run`") from None
    name = function.__code__.co_filename
    source = Source(normalized("".join(lines)), name, max(first_line, 1))
    text = Text(source)
    whole = text.slice(SourceSpan(0, len(source.text)))
    for statement in statements(text, whole):
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            return source, _region(text, statement)
    raise BadProgram(f"a query is a function with a body; {function.__name__} is none")


def _region(text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> SourceSpan:
    first = function.body[0]
    last = function.body[-1]
    span = SourceSpan(_start(text, first), text.offset_of_bytes(*_end(last)))
    if not _is_docstring(first):
        return span
    string = SourceSpan(_start(text, first), text.offset_of_bytes(*_end(first)))
    held = _held_by(text, string)
    if all(map(_is_nothing, function.body[1:])):
        if held is None and "[" not in text.text[string.start : string.end]:
            what = "neither a program, whose lines begin with quotes, nor a prompt with a [HOLE]"
            raise text.bad(f"the docstring is {what}", string)
        return held or string
    if held is not None and _has_holes(text, held):
        what = "a program in a docstring, and code behind it, which would not be run"
        raise text.bad(f"{what}: put both into the docstring", string)
    return span


def _has_holes(text: Text, held: SourceSpan) -> bool:
    """Whether it is a program with holes; lines of a prompt may begin with quotes, too."""
    try:
        return any("[" in prompt.value.code for prompt in layout_of(text, held).prompts)
    except BadProgram:
        return False


def _held_by(text: Text, docstring: SourceSpan) -> SourceSpan | None:
    """The program in a docstring of several lines, if it is one."""
    strings = tokens_of(text, docstring)
    content = content_of(strings[0])
    is_long = text.text[content.start - 3 : content.start] in ("'''", '"""')
    if len(strings) > 1 or not is_long:
        return None
    shown = text.text[content.start : content.stop]
    return SourceSpan(content.start, content.stop) if is_program(shown) else None


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


_TOO_DEEP = "the code is nested too deeply"
_NOTHING: Mapping[str, object] = MappingProxyType({})


def read(
    text: str,
    *,
    name: str = "<query>",
    first_line: int = 1,
    namespace: Mapping[str, object] | None = None,
    parameters: inspect.Signature | None = None,
) -> Program:
    """The program of a text.

    name, first_line: the text's origin: a path, or a name in angle brackets
    namespace:        the names in scope besides builtins
    parameters:       its parameters
    Raises BadProgram.
    """
    with TrimmedTracebacks():
        source = Source(normalized(text), name, first_line)
        scope = Scope(
            name=name,
            parameters=parameters or inspect.Signature(),
            globals=_globals(namespace or _NOTHING),
            given=frozenset(namespace or _NOTHING),
        )
        return _program(source, SourceSpan(0, len(source.text)), scope)


def read_function(function: Callable[..., object], *, around: FrameType | None = None) -> Program:
    """The program in a function's docstring, or the function's body.

    Its scope is the function's globals and closure, and the variables of `around`, in which it is
    decorated: Python creates cells for names used in the code, but not for those in a docstring.
    The Program's parameters and their defaults are the function's. Raises BadProgram.
    """
    if not isinstance(function, FunctionType):
        raise BadProgram(f"a query is a function of Python's. Given: {function!r}")
    with TrimmedTracebacks():
        source, region = program_in(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        is_module = around is None or around.f_locals is around.f_globals
        scope = Scope(
            name=function.__name__,
            parameters=inspect.signature(function),
            globals=function.__globals__,
            cells=dict(cells),
            frame=around,
            values={} if around is None or is_module else dict(around.f_locals),
        )
        return _program(source, region, scope)


def read_template(
    template: str,
    condition: str | None = None,
    *,
    name: str = "<template>",
    namespace: Mapping[str, object] | None = None,
) -> Program:
    """The program of one prompt, given as a string value: escapes are resolved already.

    `condition`: as behind `where`. Names in the template that are neither in `namespace` nor
    builtins are the program's parameters, in order of first use.
    Raises BadProgram.
    """
    with TrimmedTracebacks():
        return _template(template, condition, name, namespace or _NOTHING)


def _template(
    template: str, condition: str | None, name: str, namespace: Mapping[str, object]
) -> Program:
    prompt = f'"""{template}"""'
    clause = "" if condition is None else f" where {normalized(condition)}"
    text = Text(Source(prompt + clause, name))
    where = SourceSpan(len(prompt) + len(" where "), len(prompt + clause)) if clause else None
    _check_characters(text)
    value = Fragment(template, range(3, len(template) + 4))
    whole = PromptText(value, SourceSpan(0, len(prompt + clause)), where)
    layout = Layout(blocks=(Block(whole.span),), prompts=(whole,))
    plain = Scope(name=name, parameters=inspect.Signature(), globals=_globals(namespace))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        free = free_names(text, layout, plain)
        parameters = inspect.Signature([inspect.Parameter(each, kind) for each in free])
        scope = replace(plain, parameters=parameters)
        return compile_program(text, layout, scope, filename_of(text.source))
    except RecursionError:
        raise text.bad(_TOO_DEEP, 0) from None


def _program(source: Source, region: SourceSpan, scope: Scope) -> Program:
    text = Text(source)
    _check_characters(text)
    try:
        return compile_program(text, layout_of(text, region), scope, filename_of(source))
    except RecursionError:
        raise text.bad(_TOO_DEEP, region.start) from None


def _check_characters(text: Text) -> None:
    """Refuse null characters and lone surrogates, which Python cannot parse."""
    for offset, char in enumerate(text.text):
        if char == "\0" or "\ud800" <= char <= "\udfff":
            raise text.bad(f"the character {char!r} cannot stand in a program", offset)


def _globals(namespace: Mapping[str, object]) -> dict[str, Any]:
    return {"__name__": program_text.__name__, **namespace, "__builtins__": builtins}
