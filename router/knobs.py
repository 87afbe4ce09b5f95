"""How a knob is declared, and the rules that its text must pass; `config.py` declares them all."""

from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import Any, NoReturn

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})

Parse = Callable[[str], Any]


class BadConfig(ValueError):
    """A flag or variable that breaks its rule; the text names it, its value and the rule."""


def whole(low: int, high: int | None = None) -> Parse:
    rule = f"a whole number, at least {low}" + (f" and at most {high}" if high is not None else "")

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise BadConfig(f"must be {rule}") from None
        if number < low or (high is not None and number > high):
            raise BadConfig(f"must be {rule}")
        return number

    return parse


def seconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0.0 < number < 1e9:
        raise BadConfig("must be a number of seconds above 0")
    return number


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadConfig("must be a number") from None


def word(text: str) -> str:
    if not text.strip():
        raise BadConfig("must not be empty")
    return text


def one_of(*words: str) -> Parse:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise BadConfig(f"must be one of {', '.join(words)}")
        return text.lower()

    return parse


def switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise BadConfig("must be true or false")


def file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise BadConfig("must be a file that exists")
    return path


def refused(reason: str) -> Parse:
    def parse(text: str) -> NoReturn:
        raise BadConfig(reason)

    return parse


def knob(
    default: Any,
    help: str,
    parse: Parse = word,
    *,
    group: str,
    env: bool = True,
    aliases: tuple[str, ...] = (),
    kind: str = "value",
) -> Any:
    """A knob, declared as a field of RouterConfig.

    With `env` its variable is the flag's name in capitals. `kind` is "value" or "switch", a
    flag without a value. `aliases` are older names.
    """
    knob = {
        "help": help,
        "parse": switch if kind == "switch" and parse is word else parse,
        "group": group,
        "env": env,
        "aliases": aliases,
        "kind": kind,
    }
    return field(default=default, metadata=knob)
