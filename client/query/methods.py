"""Binds a program to an object, as Python binds methods: the object is the first argument."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from client.query.program import Program


def bound(program: Program, instance: object) -> Program:
    """The bound program, with one parameter less."""

    def body(context: object, *arguments: object, **keywords: object) -> Any:
        return program.body(context, instance, *arguments, **keywords)

    def clause(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if function is None:
            return None

        @wraps(function)
        def asked(*arguments: object, **keywords: object) -> Any:
            return function(instance, *arguments, **keywords)

        return asked

    return replace(
        program,
        parameters=program.parameters[1:],
        body=wraps(program.body)(body),
        decoder=clause(program.decoder),
        model=clause(program.model),
    )
