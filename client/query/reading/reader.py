"""The public functions that parse programs.

read            text programs (decoder, body, from, where, distribute) and plain bodies
read_function   functions whose docstring or whose body is a program
read_template   one prompt and its condition

A docstring contains a program or is itself a prompt:

    "Hi {x} [Y]"                 a program: a line begins with a quote, or with a decoder
    if x: "Hi {x} [Y]"           or has quotes elsewhere, if the rest is valid Python
    return await ask(x)          or has none, if it is Python code with an effect
    Say hi to {x}: [Y]           a prompt

Short texts may be valid Python by chance: `Answer: [X]` is an annotation, `Yes, no` a tuple, `Total
= [X]` an assignment. If there is a hole in an ambiguous text, even in a comment or a string, it is
a prompt.
"""

import ast
import builtins
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import FunctionType, MappingProxyType
from typing import Any

from client.query.errors import BadProgram, Source, TrimmedTracebacks
from client.query.program import Program
from client.query.reading import program_text
from client.query.reading.bodies import HOLE, statements_of
from client.query.reading.clauses import (
    DECODER_WORDS,
    Block,
    Layout,
    PromptText,
    layout_of,
    without_foreign_comments,
)
from client.query.reading.compiled_functions import Scope, compile_program, filename_of, free_names
from client.query.reading.enclosing import Enclosing
from client.query.reading.nodes import names_bound_anywhere, own_scope, statements
from client.query.reading.rewriting import Surroundings
from client.query.reading.text import (
    Fragment,
    SourceSpan,
    Text,
    beside_code,
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


def is_program(text: Text, held: SourceSpan, known: AbstractSet[str]) -> bool:
    """Whether the text between the quotes is a program. `known`: the names in scope."""
    shown = text.text[held.start : held.end]
    if _PROMPT_OR_DECODER.search(shown):
        return True
    if _PROMPT_BEHIND_COLON.search(shown) and has_holes(text, held):
        return True
    try:
        return _does_something(text, held, known)
    except (BadProgram, RecursionError):
        # A thousand minus signs are valid Python, but no code.
        return False


def has_holes(text: Text, held: SourceSpan) -> bool:
    """Whether it is a program with holes; lines of a prompt may begin with quotes, too."""
    try:
        return _has_holes(layout_of(text, held))
    except BadProgram:
        return False


def _does_something(text: Text, held: SourceSpan, known: AbstractSet[str]) -> bool:
    """Whether it is Python code with an effect. Raises BadProgram, RecursionError."""
    layout = layout_of(text, held)
    preamble, statements = statements_of(text, layout)
    body = [*preamble, *statements]
    if _has_prompts(layout, body):
        return True
    known = known | names_bound_anywhere(body)
    if _gives(body, known):
        return True
    quoted = {name for each in beside_code(text, held) for name in HOLE.findall(each)}
    return quoted <= known and _acts(body, known)


def _has_holes(layout: Layout) -> bool:
    return any("[" in prompt.value.code for prompt in layout.prompts)


def _has_prompts(layout: Layout, body: Sequence[ast.stmt]) -> bool:
    """Whether there are prompts, and no other lines without effect."""
    if not layout.prompts or any(map(_is_idle, body[:-1])):
        return False
    are_all = all(isinstance(each, ast.Expr) for each in body)
    return _has_holes(layout) or are_all


def _is_idle(statement: ast.stmt) -> bool:
    working = (ast.Constant, ast.Call, ast.Await, ast.NamedExpr)
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, working)


def _gives(body: Sequence[ast.stmt], known: AbstractSet[str]) -> bool:
    """Whether it returns or awaits a value, which Python allows in functions only."""
    nodes = list(own_scope(body))
    # `Wait: await x` is only an annotation.
    said = {
        node
        for each in nodes
        if isinstance(each, ast.AnnAssign)
        for node in ast.walk(each.annotation)
    }
    return any(_gives_one(node, known) for node in nodes if node not in said)


def _gives_one(node: ast.AST, known: AbstractSet[str]) -> bool:
    match node:
        case ast.Await(awaited):
            return not _is_like_a_hole(awaited, known)
        case ast.Return(value):
            return value is not None
    return isinstance(node, ast.AsyncFor | ast.AsyncWith)


def _acts(body: Sequence[ast.stmt], known: AbstractSet[str]) -> bool:
    """Whether it is code with an effect and without a hole."""
    if all(map(_says_nothing, body)):
        return False
    if any(_is_like_a_hole(node, known) for node in ast.walk(ast.Module(list(body), []))):
        return False
    calls = any(isinstance(node, ast.Call) for node in own_scope(body))
    match body[-1]:
        case ast.Expr(ast.Name(name)):
            return calls or name in names_bound_anywhere(body)
    return calls


def _says_nothing(statement: ast.stmt) -> bool:
    """Whether it is an expression or an annotation."""
    is_annotation = isinstance(statement, ast.AnnAssign) and statement.value is None
    return isinstance(statement, ast.Expr | ast.Pass) or is_annotation


def _is_like_a_hole(node: ast.AST, known: AbstractSet[str]) -> bool:
    """Whether it is `[X]` or `[X: int]` of an unknown name, or a recall: `{x}`, `{x:10}`."""
    match node:
        case ast.List([ast.Name(name)]) | ast.Subscript(
            _, ast.Name(name) | ast.Slice(ast.Name(name))
        ):
            return name not in known
        case ast.Set([_]):
            return True
        case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.Expr(value):
            return _is_formatted(value)
    return False


def _is_formatted(value: ast.expr) -> bool:
    """Whether it is `{x:10}`, a dict for Python; with a constant for x it is no recall."""
    match value:
        case ast.Dict([ast.expr() as code], [ast.Constant() | ast.Name() | ast.Set()]):
            return not isinstance(code, ast.Constant)
    return False


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
        scope = Scope(globals=_globals(namespace or _NOTHING))
        region = SourceSpan(0, len(source.text))
        around = Surroundings(
            name=name,
            parameters=parameters or inspect.Signature(),
            is_callable=scope.is_callable,
            is_module=True,
            given=frozenset(namespace or _NOTHING),
        )
        return _program(source, region, around, scope)


def read_function(function: Callable[..., object], *, around: Enclosing | None = None) -> Program:
    """The program in a function's docstring, or the function's body.

    Its scope is the function's globals and closure. `around`: the enclosing function, for which
    Python creates no closure in case of a docstring.
    The Program's parameters and their defaults are the function's. Raises BadProgram.
    """
    if not isinstance(function, FunctionType):
        raise BadProgram(f"a query is a function of Python's. Given: {function!r}")
    with TrimmedTracebacks():
        source, region = program_in(function)
        scope = scope_of(function, around or Enclosing())
        around_it = Surroundings(
            name=function.__name__,
            parameters=inspect.signature(function),
            is_callable=scope.is_callable,
        )
        return _program(source, region, around_it, scope)


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
    scope = Scope(globals=_globals(namespace))
    plain = Surroundings(name=name, parameters=inspect.Signature(), is_callable=scope.is_callable)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        places = free_names(text, layout, plain, scope)
        names = [inspect.Parameter(each, kind) for each in places]
        around = replace(plain, parameters=inspect.Signature(names))
        program = compile_program(text, layout, around, scope, filename_of(text.source))
        return replace(program, parameter_places=places)
    except RecursionError:
        raise text.bad(_TOO_DEEP, 0) from None


def _program(source: Source, region: SourceSpan, around: Surroundings, scope: Scope) -> Program:
    text = Text(source, without_foreign_comments(source.text, region))
    _check_characters(text)
    try:
        return compile_program(text, layout_of(text, region), around, scope, filename_of(source))
    except RecursionError:
        raise text.bad(_TOO_DEEP, region.start) from None


def _check_characters(text: Text) -> None:
    """Refuse null characters and lone surrogates, which Python cannot parse."""
    for offset, char in enumerate(text.text):
        if char == "\0" or "\ud800" <= char <= "\udfff":
            raise text.bad(f"the character {char!r} cannot stand in a program", offset)


def _globals(namespace: Mapping[str, object]) -> dict[str, Any]:
    return {"__name__": program_text.__name__, **namespace, "__builtins__": builtins}
