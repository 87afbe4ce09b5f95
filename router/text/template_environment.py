"""The sandbox of chat templates: Jinja with transformers' settings, bounded in time and length.

A template is a program that comes with the model. It cannot reach Python's internals, loop for
ever, or write without end. A single call of a string method or filter (`center(10 ** 9)`, `join`)
can still take memory: the operator chose the model, and clients cannot write templates. It knows no
messages and no models.
"""

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

_MAX_TEXT_LEN = 1 << 24
_MAX_INT_BITS = 1 << 12
# The prefix of our own names inside a template.
PRIVATE_PREFIX = "tandem_"
_TICK = f"{PRIVATE_PREFIX}tick"
_BOUNDED = f"{PRIVATE_PREFIX}bounded"


class TemplateLimit(TemplateError):
    """A template ran too long or wrote too much."""


class CompiledTemplate:
    """One template, ready to render.

    `variables` are the names that it reads, `words` the string constants in its comparisons.
    """

    def __init__(self, source: str, time_limit_s: float, now: Callable[[], datetime]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        environment = _Environment(now)
        tree = environment.parse(source)
        # First: looking for variables folds constants.
        self.words: frozenset[str] = _compared(tree)
        self.variables: frozenset[str] = frozenset(find_undeclared_variables(tree))
        code = environment.compile(_Bounds().visit(tree))
        self._template = Template.from_code(environment, code, environment.make_globals(None))
        self._time_limit_s = time_limit_s

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises what the template raises, and TemplateLimit."""
        deadline_s = time.monotonic() + self._time_limit_s

        def tick() -> str:
            if time.monotonic() > deadline_s:
                raise TemplateLimit(f"it was not done after {self._time_limit_s} s")
            return ""

        parts: list[str] = []
        text_len = 0
        bounds = {_TICK: tick, _BOUNDED: _bounded}
        for part in self._template.generate({**variables, **bounds}):
            text_len += len(part)
            if text_len > _MAX_TEXT_LEN:
                raise TemplateLimit(f"it wrote more than {_MAX_TEXT_LEN} characters")
            parts.append(part)
        return "".join(parts)


class _Environment(ImmutableSandboxedEnvironment):
    """The settings, functions and filters that the hub's templates expect."""

    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        self.filters["tojson"] = _tojson
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's words for training; here it marks nothing."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Bounds(NodeTransformer):
    """Lets the clock be looked at in every loop and macro, and joined texts be measured."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._ticking(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._ticking(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        return _call(_BOUNDED, [self.generic_visit(node)], node.lineno)

    def _ticking(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        tick = _call(_TICK, [], node.lineno)
        node.body.insert(0, nodes.ExprStmt(tick, lineno=node.lineno))
        return node


def _compared(tree: nodes.Template) -> frozenset[str]:
    return frozenset(
        constant.value
        for comparison in tree.find_all(nodes.Compare)
        for constant in comparison.find_all(nodes.Const)
        if isinstance(constant.value, str)
    )


def _call(name: str, arguments: list[Any], line: int) -> nodes.Call:
    function = nodes.Name(name, "load", lineno=line)
    return nodes.Call(function, arguments, [], None, None, lineno=line)


def _bounded(text: str) -> str:
    if len(text) > _MAX_TEXT_LEN:
        raise TemplateLimit(f"it wrote more than {_MAX_TEXT_LEN} characters")
    return text


def _check_operands(operator: str, left: Any, right: Any) -> None:
    """Refuse what would take memory or time out of all proportion to a chat."""
    if isinstance(left, int) and isinstance(right, int):
        num_bits = left.bit_length()
        if operator == "*":
            num_bits += right.bit_length()
        elif operator == "**":
            num_bits *= max(right, 1)
        if num_bits > _MAX_INT_BITS:
            raise TemplateLimit(f"it made a number of more than {_MAX_INT_BITS} bits")
        return
    length = _len(left) + _len(right)
    if operator == "*":
        length *= left if isinstance(left, int) else right if isinstance(right, int) else 1
    if length > _MAX_TEXT_LEN:
        raise TemplateLimit(f"it made a text or list of more than {_MAX_TEXT_LEN} entries")


def _len(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON for a prompt, not for HTML as Jinja's own."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
