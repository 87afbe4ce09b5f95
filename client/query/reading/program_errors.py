"""Gives errors, and exceptions of a program's own code, their places in the program."""

import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from types import CodeType, FrameType, FunctionType, TracebackType

from client.errors import TandemError
from client.query.conditions.terms import OPERATORS
from client.query.errors import (
    Place,
    ProgramFailed,
    QueryError,
    Source,
    meant,
    meant_by,
    unknown_name,
)
from client.query.program import Program
from client.query.reading.text import SourceSpan, Text

# Folders of code that is not the author's: Python's, installed packages, and our own.
_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    f"{Path(__file__).parents[2]}{os.sep}",
    "<frozen",
)
# The builtins that programs use most.
_BUILTINS = ("bool", "dict", "enumerate", "float", "list", "print", "range", "sorted", "str", "zip")
# A string on one line with a hole of this name in it.
_IN_STRING = r"""(['"])(?:(?!\1).)*\[\s*{}\s*[\]:]"""


def as_query_error(error: Exception, program: Program) -> QueryError:
    """Convert an exception to a QueryError: a QueryError gets a place if it has none, another one
    becomes a ProgramFailed with the exception as its cause."""
    place = place_of(error, program)
    if isinstance(error, QueryError):
        if error.source is None:
            error.source = program.source
            error.place = error.place or place
        return error
    said = f": {error}" if str(error) else ""
    what = f"{type(error).__name__}{said}{_hint(error, program)}"
    failed = ProgramFailed(what, place, program.source)
    failed.__cause__ = error
    helper = _helper(error, program)
    if helper is not None:
        failed.add_note(f"raised in {helper}")
    return failed


def _helper(error: BaseException, program: Program) -> str | None:
    """The place of an exception in the author's code outside of the program, if any."""
    found = _innermost(error, program)
    called = None if found is None else found.tb_next
    helper = None
    while called is not None:
        if not called.tb_frame.f_code.co_filename.startswith(_LIBRARIES):
            helper = called
        called = called.tb_next
    if helper is None:
        return None
    code = helper.tb_frame.f_code
    return f"{code.co_name} ({code.co_filename}:{helper.tb_lineno})"


def place_of(error: BaseException, program: Program) -> Place | None:
    """The innermost place of an exception in the program; None: there is none."""
    found = _innermost(error, program)
    return None if found is None else _place(found, program)


def _innermost(error: BaseException, program: Program) -> TracebackType | None:
    codes = {*_codes_of(program.body), *_codes_of(program.decoder), *_codes_of(program.model)}
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            found = traceback
        traceback = traceback.tb_next
    return found


def _hint(error: Exception, program: Program) -> str:
    """A suggestion for the end of a message; "" if there is none."""
    if isinstance(error, ValueError) and "format specifier" in str(error):
        return "; write '{{' and '}}' for the signs themselves"
    name = unknown_name(error)
    found = _innermost(error, program)
    if name is None or found is None or found.tb_next is not None:
        return meant_by(error, ())
    if name in program.hole_names:
        return f"; the hole [{name}] is not filled yet"
    if found.tb_frame.f_code in set(_codes_of(program.model)):
        return "; the name of a model is a string"
    if re.search(_IN_STRING.format(name), program.source.text):
        return f"; the string with [{name}] is no prompt: a prompt is a statement of its own"
    hint = meant(name, _known(found.tb_frame, program))
    if not hint and name.isupper() and program.hole_names:
        return f"; holes of this program: {', '.join(sorted(program.hole_names))}"
    return hint


def _known(frame: FrameType, program: Program) -> Iterator[str]:
    yield from program.hole_names
    yield from OPERATORS
    yield from _BUILTINS
    for names in (frame.f_locals, frame.f_globals):
        yield from (name for name in names if not name.startswith("_"))


def _codes_of(function: Callable[..., object] | None) -> Iterator[CodeType]:
    if isinstance(function, FunctionType):
        # A method is wrapped, to pass its object as the first argument.
        yield from _with_inner(unwrap(function).__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _place(traceback: TracebackType, program: Program) -> Place | None:
    text = Text(program.source)
    shift = program.source.first_line - 1
    positions = list(traceback.tb_frame.f_code.co_positions())
    line, end_line, column, end_column = positions[traceback.tb_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        # Python was started without column information.
        return None
    start = text.offset_of_bytes(line - shift, column)
    return text.place(SourceSpan(start, text.offset_of_bytes(end_line - shift, end_column)))


_SHOWN_LEN = 80


def shortened(value: object) -> str:
    """A value for a message, shortened if it is long."""
    shown = repr(value)
    return shown if len(shown) <= _SHOWN_LEN else f"{shown[:_SHOWN_LEN]}…"


def locate(error: QueryError, place: Place, source: Source) -> None:
    """Set the source of an error, and its place unless it has one."""
    if error.source is None:
        error.source = source
        error.place = error.place or place


@contextmanager
def located_errors(find: Callable[[Exception], Program]) -> Iterator[None]:
    """Context: converts exceptions of a program's own code to errors with places.

    `find` returns the program that raised an exception.
    """
    try:
        yield
    except TandemError:
        raise
    except Exception as error:
        raise as_query_error(error, find(error)) from error
