"""The public functions that parse programs.

read            text programs (decoder, body, from, where, distribute) and plain bodies
read_function   functions whose docstring or whose body is a program
read_template   one prompt and its condition
"""

import builtins
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import FunctionType, MappingProxyType
from typing import Any

from client.query.errors import BadProgram
from client.query.place import Source
from client.query.program import Program
from client.query.reading import program_text
from client.query.reading.clauses import layout_of
from client.query.reading.compiled_functions import Scope, compile_program, filename_of, free_names
from client.query.reading.enclosing import Enclosing
from client.query.reading.foreign_comments import without_foreign_comments
from client.query.reading.functions import program_in, scope_of
from client.query.reading.layout import Block, Layout, PromptText
from client.query.reading.rewriting import Surroundings
from client.query.reading.text import Fragment, SourceSpan, Text, normalized
from client.query.tracebacks import TrimmedTracebacks

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
