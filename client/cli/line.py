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

from client.calls import Constraint, GenerateCall
from client.errors import BadInput
from client.sampling import SAMPLING_RULES, Sampling

_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(?!=)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'')
_BARE = re.compile(r"\S*")
_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"\S+")
_JSON = json.JSONDecoder()
# Of a value that is nested deeply, which may be as long as a line can be.
_MAX_SHOWN_LEN = 60


@dataclass(frozen=True, slots=True)
class Line:
    """What was typed. `prompt` None: only parameters. `parameters`: None takes one back."""

    prompt: str | None
    parameters: Mapping[str, object | None] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class _Rule:
    """What a key's value must be, in words, and how it is read; ValueError if it is not."""

    words: str
    read: Callable[[object], object]


def _number(value: object) -> float:
    if not isinstance(value, str):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


def _whole(value: object) -> int:
    if not isinstance(value, str):
        raise ValueError
    return int(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise ValueError
    return value


def _choices(value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        raise ValueError
    return _texts(value)


def _schema(value: object) -> object:
    if isinstance(value, str):
        value = json.loads(value)
    if not isinstance(value, dict | bool):
        raise ValueError
    return value


_NUMBER = _Rule("a number", _number)
_WHOLE = _Rule("a whole number", _whole)
_CONSTRAINTS = MappingProxyType(
    {
        "where": _Rule("a condition in quotes", _text),
        "regex": _Rule("a pattern in quotes", _text),
        "lark": _Rule("a grammar in quotes", _text),
        "gbnf": _Rule("a grammar in quotes", _text),
        "choice": _Rule("a JSON list of strings", _choices),
        "json": _Rule("a JSON schema", _schema),
    }
)
_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "max_tokens": _WHOLE,
        **{key: _WHOLE if rule.is_whole else _NUMBER for key, rule in SAMPLING_RULES.items()},
        "stop": _Rule("a string, or a JSON list of strings", _texts),
        "timeout_s": _NUMBER,
        **_CONSTRAINTS,
    }
)
KEYS = tuple(_RULES)


def read_line(text: str) -> Line:
    """What a line means. Raises BadInput."""
    text = text.strip()
    ends = _Ends(text)
    quoted = _QUOTED.match(text)
    if quoted is not None:
        parameters = ends.parameters(quoted.end())
        if parameters is not None:
            return Line(_unquoted(quoted[0]), _checked(parameters))
    for word in _WORD.finditer(text):
        parameters = ends.parameters(word.start())
        if parameters:
            return Line(text[: word.start()].rstrip() or None, _checked(parameters))
    return Line(text)


def call_of(prompt: str, parameters: Mapping[str, object | None]) -> GenerateCall:
    """The request for a prompt under all parameters that hold. Raises BadInput."""
    given = {key: value for key, value in parameters.items() if value is not None}
    kinds = [key for key in given if key in _CONSTRAINTS]
    if len(kinds) > 1:
        raise BadInput(
            f"{kinds[0]} and {kinds[1]} exclude each other: an output has one constraint"
        )
    sampling = {key: value for key, value in given.items() if key in SAMPLING_RULES}
    others = {key: given[key] for key in ("max_tokens", "timeout_s") if key in given}
    # The rules have given each value the type of its field.
    return GenerateCall(
        prompt=prompt,
        sampling=Sampling(**sampling),  # type: ignore[arg-type]
        constraint=Constraint(kinds[0], given[kinds[0]]) if kinds else None,
        stop=tuple(_texts(given.get("stop", []))),
        **others,  # type: ignore[arg-type]
    )


class _Ends:
    """The ends of one line as parameters; each place is read once, however many lead there."""

    def __init__(self, text: str) -> None:
        self._text = text
        # Where no parameters begin that go to the line's end.
        self._misfits: set[int] = set()

    def parameters(self, start: int) -> dict[str, object] | None:
        """`key=value` with spaces between, to the end; None if that is not what it is."""
        found: dict[str, object] = {}
        seen: list[int] = []
        position = self._next(start)
        while position < len(self._text):
            seen.append(position)
            key = None if position in self._misfits else _KEY.match(self._text, position)
            if key is None:
                self._misfits.update(seen)
                return None
            found[key[1]], end = _value(self._text, key)
            position = self._next(end)
            if position == end < len(self._text):
                self._misfits.update(seen)
                return None
        return found

    def _next(self, position: int) -> int:
        space = _SPACE.match(self._text, position)
        assert space is not None
        return space.end()


def _value(text: str, key: re.Match[str]) -> tuple[object, int]:
    """The value behind a key, and where it ends. Raises BadInput."""
    position = key.end()
    quoted = _QUOTED.match(text, position)
    if quoted is not None:
        return _unquoted(quoted[0]), quoted.end()
    if text[position : position + 1] in ("[", "{"):
        try:
            return _JSON.raw_decode(text, position)
        except ValueError:
            pass  # then it is a word as it stands, for the rule of its key to refuse
        except RecursionError:
            raise _too_deep(key[1], text[position:]) from None
    bare = _BARE.match(text, position)
    assert bare is not None
    return bare[0], bare.end()


def _too_deep(key: str, given: str) -> BadInput:
    shown = given if len(given) <= _MAX_SHOWN_LEN else given[:_MAX_SHOWN_LEN] + "..."
    return BadInput(f"{key} must not be nested so deeply. Given: {shown}")


def _unquoted(quoted: str) -> str:
    try:
        return str(ast.literal_eval(quoted))
    except (SyntaxError, ValueError) as error:
        raise BadInput(f"{quoted}: {error}") from None


def _checked(found: Mapping[str, object]) -> dict[str, object | None]:
    checked: dict[str, object | None] = {}
    for key, value in found.items():
        rule = _RULES.get(key)
        if rule is None:
            near = difflib.get_close_matches(key, KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(KEYS)}"
            raise BadInput(
                f"{key}={_shown(value)}: no parameter has this name; {hint} "
                "(a prompt that ends like this belongs in quotes)"
            )
        try:
            checked[key] = None if value == "" else rule.read(value)
        except ValueError:
            raise BadInput(f"{key} must be {rule.words}. Given: {_shown(value)}") from None
        except RecursionError:
            raise _too_deep(key, _shown(value)) from None
    return checked


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "what is nested too deeply to be shown"
