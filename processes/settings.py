"""How a knob is declared, and the rules that its text must pass; `config.py` declares them all."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlsplit

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})

Parse = Callable[[str], Any]
T = TypeVar("T")


class BadConfig(ValueError):
    """A flag or variable that breaks its rule; the text names it, its value and the rule."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`."""

    low: int
    high: int | None = None

    def __call__(self, text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise self._broken() from None
        if number < self.low or (self.high is not None and number > self.high):
            raise self._broken()
        return number

    def _broken(self) -> BadConfig:
        most = "" if self.high is None else f" and at most {self.high}"
        return BadConfig(f"must be a whole number, at least {self.low}{most}")


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


def collector(text: str) -> str:
    url = urlsplit(text if "://" in text else f"http://{text}")
    try:
        port = url.port
    except ValueError:
        port = None
    if url.scheme not in ("http", "https") or not url.hostname or not port or url.path.strip("/"):
        raise BadConfig(
            "must be http://HOST:PORT or https://HOST:PORT, without a path: it is OTLP over gRPC, "
            "commonly at port 4317"
        )
    return text


def several(parse: Parse) -> Parse:
    """Words between commas, each by its rule; a repeated flag is one text by then."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(parse(each.strip()) for each in text.split(",")))

    return parse_all


def api_key(text: str) -> str:
    if not text or any(not "!" <= character <= "~" for character in text):
        raise BadConfig("each key must be visible ASCII characters, without spaces and commas")
    return text


def origin(text: str) -> str:
    url = urlsplit(text)
    if text != "*" and (not url.scheme or not url.netloc or f"{url.scheme}://{url.netloc}" != text):
        raise BadConfig("must be * or SCHEME://HOST[:PORT], without a path or a slash at the end")
    return text


def file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise BadConfig("must be a file that exists")
    return path


def route(text: str) -> str:
    if not text.startswith("/"):
        raise BadConfig("must be a path that begins with /")
    return text


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
    secret: bool = False,
) -> Any:
    """A knob, declared as a field of a config's dataclass.

    With `env` its variable is the flag's name in capitals. `kind` is "value", "switch", a flag
    without a value and its contrary, or "list", a flag that may be repeated. `aliases` are older
    names. What is `secret` no message shows.
    """
    knob = {
        "help": help,
        "parse": switch if kind == "switch" and parse is word else parse,
        "group": group,
        "env": env,
        "aliases": aliases,
        "kind": kind,
        "secret": secret,
    }
    return field(default=default, metadata=knob, repr=not secret)


def flag_of(name: str) -> str:
    """The flag of a knob."""
    return "--" + name.replace("_", "-")


def contrary_of(name: str) -> str:
    """The flag that switches a knob off, whatever its variable says."""
    return flag_of(f"no_{name}")


class _Switched(argparse.Action):
    """Notes which of a switch's two flags was given, as its variable would say it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, str(option_string == self.option_strings[0]).lower())


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadConfig(f"{message}; see --help")


def parser_of(
    knobs: Iterable[Field[Any]], groups: Sequence[str], prog: str, description: str
) -> argparse.ArgumentParser:
    """The command line of these knobs, in such groups; every value that was given is a text."""
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [--flag VALUE] ...",
        description=description,
        allow_abbrev=False,
    )
    sections = {group: parser.add_argument_group(group) for group in groups}
    for each in knobs:
        meta = each.metadata
        default: Any = each.default
        if meta["kind"] == "list":
            default = ", ".join(default)
        shown = "" if default in (None, "", False) else f" (default {default})"
        options: dict[str, Any] = {"dest": each.name, "help": (meta["help"] + shown)}
        if meta["kind"] == "switch":
            options |= {"action": _Switched, "nargs": 0}
        else:
            options |= {"metavar": "VALUE"}
        if meta["kind"] == "list":
            options |= {"action": "append"}
        section = sections[meta["group"]]
        contrary = [contrary_of(each.name)] if meta["kind"] == "switch" else []
        section.add_argument(flag_of(each.name), *contrary, **options)
        for alias in meta["aliases"]:
            options |= {"dest": alias, "help": f"older name of {flag_of(each.name)}"}
            section.add_argument(flag_of(alias), **options)
    return parser


def read_knobs(
    kind: type[T],
    argv: Sequence[str],
    environ: Mapping[str, str],
    parser: argparse.ArgumentParser,
) -> T:
    """A dataclass of knobs, from a command line and an environment. Raises BadConfig."""
    told = vars(parser.parse_args(argv))
    values: dict[str, Any] = {}
    for each in fields(kind):  # type: ignore[arg-type]
        parse: Parse = each.metadata["parse"]
        for source, text in _sources(each.name, each.metadata, told, environ):
            try:
                values[each.name] = parse(text)
            except BadConfig as error:
                shown = source if each.metadata["secret"] else f"{source} {text!r}"
                raise BadConfig(f"{shown}: {error}") from None
            break
    return kind(**values)


def _sources(
    name: str, knob: Mapping[str, Any], told: Mapping[str, Any], environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Where the knob was set, the strongest first: (flag or variable, text)."""
    found = []
    for spelling in (name, *knob["aliases"]):
        if told[spelling] is not None:
            text = told[spelling]
            found.append((flag_of(spelling), ",".join(text) if knob["kind"] == "list" else text))
    for spelling in (name, *knob["aliases"]):
        variable = spelling.upper()
        if knob["env"] and environ.get(variable):
            found.append((variable, environ[variable]))
    return found
