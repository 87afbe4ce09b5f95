"""Exceptions of a program's own code, pointed at the place of the program that they came from."""

from collections.abc import Iterator
from inspect import unwrap
from types import CodeType, FunctionType, TracebackType

from client.query.errors import ProgramFailed, QueryError
from client.query.place import Place
from client.query.program import Program
from client.query.reading.text import Span, Text


def blame(error: Exception, program: Program) -> QueryError:
    """The error of a query that an exception is. A QueryError gets a place if it has none; any
    other becomes a ProgramFailed with the exception as its cause."""
    place = place_of(error, program)
    if isinstance(error, QueryError):
        if error.source is None:
            error.source = program.source
            error.place = error.place or place
        return error
    failed = ProgramFailed(f"{type(error).__name__}: {error}", place, program.source)
    failed.__cause__ = error
    return failed


def place_of(error: BaseException, program: Program) -> Place | None:
    """The innermost place of the program that an exception came through, None if there is none."""
    codes = set(_codes_of(program))
    found = None
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            found = traceback
        traceback = traceback.tb_next
    return None if found is None else _place(found, program)


def _codes_of(program: Program) -> Iterator[CodeType]:
    for function in (program.body, program.decoder, program.model):
        if isinstance(function, FunctionType):
            # A method's is wrapped: its object goes before the arguments.
            yield from _with_inner(unwrap(function).__code__)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _place(traceback: TracebackType, program: Program) -> Place:
    text = Text(program.source)
    shift = program.source.first_line - 1
    positions = list(traceback.tb_frame.f_code.co_positions())
    line, end_line, column, end_column = positions[traceback.tb_lasti // 2]
    if line is None or end_line is None or column is None or end_column is None:
        # Python was told to keep no columns: the line it is.
        start = text.offset(traceback.tb_lineno - shift, 0)
        return text.place(Span(start, text.offset(traceback.tb_lineno - shift, len(text.text))))
    start = text.offset_of_bytes(line - shift, column)
    return text.place(Span(start, text.offset_of_bytes(end_line - shift, end_column)))
