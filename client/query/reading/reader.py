"""The door: from a program's text to a Program.

read            standalone programs (decoder, body, from, where, distribute) and bare bodies
read_function   functions whose docstring or whose body is a program
read_template   one prompt and its condition
"""

import builtins
import inspect
from collections.abc import Mapping
from typing import Any

from client.query.place import Source
from client.query.program import Program
from client.query.reading.clauses import layout_of
from client.query.reading.making import Scope, filename_of, made
from client.query.reading.rewriting import Surroundings
from client.query.reading.text import Span, Text, normalized


def read(
    text: str,
    *,
    name: str = "<query>",
    first_line: int = 1,
    namespace: Mapping[str, object] | None = None,
    parameters: inspect.Signature | None = None,
) -> Program:
    """The program of a text.

    `name` and `first_line` say where the text comes from: a path, or a name in angle brackets.
    `namespace`: the names that it sees besides Python's own. `parameters`: its arguments.
    Raises BadProgram.
    """
    source = Source(normalized(text), name, first_line)
    whole = Text(source)
    scope = Scope(globals=_globals(namespace or {}))
    around = Surroundings(
        name="program",
        parameters=parameters or inspect.Signature(),
        is_callable=scope.is_callable,
    )
    layout = layout_of(whole, Span(0, len(source.text)))
    return made(whole, layout, around, scope, filename_of(source))


def _globals(namespace: Mapping[str, object]) -> dict[str, Any]:
    return {"__name__": "__query__", **namespace, "__builtins__": builtins}
