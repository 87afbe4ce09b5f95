"""A line of the interactive client: a prompt, and parameters at its end.

    Once upon a time max_tokens=50 temperature=0.7 stop="\\n" where="len(words(X)) < 5"

The parameters are the longest end of the line that reads as `key=value` and nothing else. A prompt
in quotes has Python's escapes, and may end as a parameter would. It knows no server and no screen.
"""

import ast
import difflib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from client.calls import Constraint, GenerateCall, Prompt
from client.errors import BadInput
from client.sampling import SAMPLING_RULES, Sampling

_QUOTED = r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_STRINGS = r"""\[(?:"(?:[^"\\]|\\.)*"|[^"\]])*\]"""
_PARAMETER = re.compile(
    rf"([A-Za-z_][A-Za-z0-9_]*)=(?!=)((?>{_QUOTED}|{_STRINGS}(?!\S)|\S*))(?:\s+|\Z)"
)
# From the first parameter that only parameters follow; each value is read once, as far as it goes.
_PARAMETERS = re.compile(rf"(?<!\S)(?>(?:{_PARAMETER.pattern})+)\Z")
_QUOTED_PROMPT = re.compile(rf"({_QUOTED})\s*(.*)", re.DOTALL)
_MAX_SHOWN_LEN = 60
# How alike a name is, at least, that was meant as a parameter's (difflib).
_TYPO = 0.75


@dataclass(frozen=True, slots=True)
class Line:
    """What was typed. `prompt` None: only parameters. `parameters`: None takes one back."""

    prompt: str | None
    parameters: Mapping[str, object | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a key's value must be, in words, and how it is read; ValueError if it is not."""

    words: str
    read: Callable[[str], object]


def _number(value: str) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _strings(value: str) -> list[str]:
    strings = json.loads(value)
    if not strings or not isinstance(strings, list) or not all(isinstance(s, str) for s in strings):
        raise ValueError
    return strings


def _stop(value: str) -> list[str]:
    return _strings(value) if value.startswith("[") else [value]


def _schema(value: str) -> object:
    schema = json.loads(value)
    if not isinstance(schema, dict | bool):
        raise ValueError
    return schema


_NUMBER = _Rule("a number", _number)
_WHOLE = _Rule("a whole number", int)
_CONSTRAINTS = MappingProxyType(
    {
        "where": _Rule("a condition in quotes", str),
        "regex": _Rule("a pattern in quotes", str),
        "lark": _Rule("a grammar in quotes", str),
        "gbnf": _Rule("a grammar in quotes", str),
        "choice": _Rule("a JSON list of strings", _strings),
        "json": _Rule("a JSON schema", _schema),
    }
)
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "max_tokens": _WHOLE,
        **{key: _WHOLE if rule.is_whole else _NUMBER for key, rule in SAMPLING_RULES.items()},
        "stop": _Rule("a string, or a JSON list of strings", _stop),
        "timeout_s": _NUMBER,
        **_CONSTRAINTS,
    }
)
KEYS = tuple(_RULES)
CONSTRAINT_KEYS = tuple(_CONSTRAINTS)


def read_line(text: str, *, is_talk: bool = False) -> Line:
    """What a line means. Raises BadInput.

    `is_talk`: people write of x=3; an end that names no parameter, nor nearly one, is text.
    """
    text = text.strip()
    quoted = _QUOTED_PROMPT.fullmatch(text)
    if quoted is not None and (not quoted[2] or _PARAMETERS.match(quoted[2])):
        return Line(_unquoted(quoted[1]), _read_parameters(quoted[2]))
    found = _PARAMETERS.search(text)
    if found is None:
        return Line(text)
    if is_talk and not all(_is_near(key) for key, _ in _PARAMETER.findall(found[0])):
        return Line(text)
    return Line(text[: found.start()].rstrip() or None, _read_parameters(found[0]))


def read_parameter(key: str, text: str) -> object | None:
    """A parameter's value; None takes it back. Raises BadInput."""
    return _read(key, text)


def call_of(prompt: Prompt, parameters: Mapping[str, object | None]) -> GenerateCall:
    """The request for a prompt under all parameters that hold. Raises BadInput."""
    given = {key: value for key, value in parameters.items() if value is not None}
    kinds = [key for key in given if key in _CONSTRAINTS]
    if len(kinds) > 1:
        raise BadInput(
            f"{kinds[0]} and {kinds[1]} exclude each other: an output has one constraint"
        )
    sampling = {key: given.pop(key) for key in SAMPLING_RULES if key in given}
    constraint = Constraint(kinds[0], given.pop(kinds[0])) if kinds else None
    stop = given.pop("stop", ())
    # The rules have given each value the type of its field.
    return GenerateCall(
        prompt=prompt,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        constraint=constraint,
        stop=tuple(stop),  # type: ignore[arg-type]
        **given,  # type: ignore[arg-type]
    )


def _is_near(key: str) -> bool:
    return key in _RULES or bool(difflib.get_close_matches(key, KEYS, 1, _TYPO))


def _read_parameters(text: str) -> dict[str, object | None]:
    return {key: _read(key, value) for key, value in _PARAMETER.findall(text)}


def _read(key: str, text: str) -> object | None:
    """The value behind a key; None takes it back."""
    is_quoted = re.fullmatch(_QUOTED, text) is not None
    value = _unquoted(text) if is_quoted else text
    shown = value if len(value) <= _MAX_SHOWN_LEN else value[:_MAX_SHOWN_LEN] + "..."
    rule = _RULES.get(key)
    if rule is None:
        near = difflib.get_close_matches(key, KEYS, 1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
        raise BadInput(
            f"{key}={shown}: no parameter has this name; {hint} "
            "(a prompt that ends like this belongs in quotes)"
        )
    if not value or (key == "stop" and is_quoted):
        return [value] if value else None
    try:
        return rule.read(value)
    except (ValueError, RecursionError):
        raise BadInput(f"{key} must be {rule.words}. Given: {shown}") from None


def _unquoted(quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted))
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{quoted}: {error}") from None
