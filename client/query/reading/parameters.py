"""The parameters of functions made from programs."""

import ast
import inspect
from collections.abc import Sequence

from client.query.reading.nodes import arguments_of


def parameters_of(signature: inspect.Signature, first: str | None) -> ast.arguments:
    """A signature's parameters, with placeholders for defaults, which are set later."""
    made = arguments_of(())
    if first is not None:
        made.posonlyargs.append(ast.arg(first))
    for parameter in signature.parameters.values():
        argument = ast.arg(parameter.name)
        has_default = parameter.default is not inspect.Parameter.empty
        match parameter.kind:
            case inspect.Parameter.POSITIONAL_ONLY:
                made.posonlyargs.append(argument)
            case inspect.Parameter.POSITIONAL_OR_KEYWORD:
                made.args.append(argument)
            case inspect.Parameter.VAR_POSITIONAL:
                made.vararg = argument
            case inspect.Parameter.VAR_KEYWORD:
                made.kwarg = argument
            case inspect.Parameter.KEYWORD_ONLY:
                made.kwonlyargs.append(argument)
                made.kw_defaults.append(ast.Constant(None) if has_default else None)
    return made


def captured(make: ast.Module, extra: Sequence[str]) -> None:
    """Add parameters to `make`, which its inner functions capture."""
    function = make.body[0]
    assert isinstance(function, ast.FunctionDef)
    span = {key: getattr(function, key) for key in ("lineno", "col_offset")}
    end = {key: getattr(function, key) for key in ("end_lineno", "end_col_offset")}
    function.args.args.extend(ast.arg(name, **span, **end) for name in extra)
