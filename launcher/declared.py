"""Options of commands, each declared once as a field of a dataclass: typer's parameters are made of
the fields, and so are the flags of the processes that a command starts.

What is a knob of such a process has its default, its rule and its words from there.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from enum import Flag, auto
from typing import Any, TypeVar, get_type_hints

import typer

from launcher.fleet_knobs import FleetConfig
from processes.settings import Whole, contrary_of, flag_of, seconds
from router.config import RouterConfig
from router.front_config import FrontConfig

_SECTION, _DECLARED = "section", "declared"
_LEAST_S = 0.001

Options = TypeVar("Options")
Done = TypeVar("Done")


class Told(Flag):
    """Which of the processes that are started get an option as a flag."""

    NOBODY = 0
    ROUTER = auto()
    SHARDS = auto()
    FRONT = auto()


_READERS: Mapping[type[FrontConfig], Told] = {
    FrontConfig: Told.ROUTER | Told.FRONT,
    RouterConfig: Told.ROUTER,
    FleetConfig: Told.FRONT,
}


@dataclass(frozen=True, slots=True)
class _Declared:
    """`words` are typer.Option's; those that are missing are the knob's.

    `for_servers`: where several models are served, each one's server gets the flag too.
    """

    words: Mapping[str, Any]
    flags: tuple[str, ...]
    told: Told
    for_servers: bool
    config: type[FrontConfig] | None = None


def section(title: str | None = None) -> Any:
    """A field that holds further options, under such a title on the page of help."""
    return field(metadata={_SECTION: title})


def argument(**words: Any) -> Any:
    """A field that is read without a flag; `words` are typer.Argument's."""
    return field(metadata={_DECLARED: typer.Argument(None, **words)})


def option(
    default: Any,
    help: str,
    *flags: str,
    told: Told = Told.NOBODY,
    for_servers: bool = True,
    **words: Any,
) -> Any:
    """A field that is an option, one that must be given where `default` is `...`.

    `words` are typer.Option's. Its flag is its name, unless `flags` are given, and its variable
    the name in capitals, unless `envvar` is given.
    """
    words |= {"default": default, "help": help}
    declared = {_DECLARED: _Declared(words, flags, told, for_servers)}
    return field(metadata=declared) if default is ... else field(default=default, metadata=declared)


def knob_of(
    config: type[FrontConfig],
    *flags: str,
    told: Told | None = None,
    for_servers: bool = True,
    **words: Any,
) -> Any:
    """A field that is an option as `config` has the knob of its name, for who reads that config.

    `words` are typer.Option's, instead of the knob's.
    """
    told = _READERS[config] if told is None else told
    for_servers = for_servers and config is not FleetConfig
    return field(metadata={_DECLARED: _Declared(words, flags, told, for_servers, config)})


def takes(
    kind: type[Options],
) -> Callable[[Callable[[typer.Context, Options], Done]], Callable[..., Done]]:
    """Makes a function of `kind`, a dataclass of options, one whose parameters typer can read."""

    def decorate(run: Callable[[typer.Context, Options], Done]) -> Callable[..., Done]:
        @functools.wraps(run)
        def command(context: typer.Context, **given: Any) -> Done:
            return run(context, _made(kind, given))

        own = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
        parameters = [own, *_parameters(kind, None)]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def flags_for(child: Told, options: Any, **instead: object) -> tuple[str, ...]:
    """The flags of one child; None is left out.

    No is told as well: the child has our environment, which may say yes.

    `instead` are values that options have for this child alone.
    """
    flags: list[str] = []
    for name, declared, value in _options(options):
        if child in declared.told:
            flags += _spelt(name, declared, instead.get(name, value))
    return tuple(flags)


def not_for_servers(options: Any) -> frozenset[str]:
    """The names of the options that no server of several models is given."""
    return frozenset(name for name, declared, _ in _options(options) if not declared.for_servers)


def joined(words: list[str]) -> str:
    """Words between commas, as one text."""
    # A variable's text is split at its spaces before it comes here.
    return re.sub(",+", ",", ",".join(words))


def _parameters(kind: type[Any], title: str | None) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind)
    for each in fields(kind):
        if _SECTION in each.metadata:
            yield from _parameters(hints[each.name], each.metadata[_SECTION])
            continue
        declared = each.metadata[_DECLARED]
        if isinstance(declared, _Declared):
            declared = _typer_option(each.name, declared, title)
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=declared,
            annotation=hints[each.name],
        )


def _typer_option(name: str, declared: _Declared, title: str | None) -> Any:
    words: dict[str, Any] = {"envvar": name.upper(), "rich_help_panel": title}
    flags = declared.flags
    if declared.config is not None:
        knob = _knob(declared.config, name)
        words |= _words_of(knob)
        aliases = knob.metadata["aliases"]
        flags = flags or (tuple(map(flag_of, (name, *aliases))) if aliases else ())
    words |= declared.words
    return typer.Option(words.pop("default"), *flags, **words)


def _words_of(knob: Field[Any]) -> dict[str, Any]:
    """A knob in the words of typer.Option."""
    meta, default = knob.metadata, knob.default
    words: dict[str, Any] = {"help": f"{meta['help'][0].upper()}{meta['help'][1:]}."}
    names = (knob.name, *meta["aliases"])
    words["envvar"] = [name.upper() for name in names] if meta["env"] else None
    if isinstance(default, tuple):
        words |= {"default": None, "show_default": ", ".join(default) or False}
    else:
        words["default"] = default
    if isinstance(meta["parse"], Whole):
        words |= {"min": meta["parse"].low, "max": meta["parse"].high}
    elif meta["parse"] is seconds:
        words["min"] = _LEAST_S
    return words


def _knob(config: type[FrontConfig], name: str) -> Field[Any]:
    return next(each for each in fields(config) if each.name == name)


def _made(kind: type[Any], given: Mapping[str, Any]) -> Any:
    hints = get_type_hints(kind)
    return kind(
        **{
            each.name: _made(hints[each.name], given)
            if _SECTION in each.metadata
            else given[each.name]
            for each in fields(kind)
        }
    )


def _options(options: Any) -> Iterator[tuple[str, _Declared, object]]:
    """Every option, below its sections too: its name, how it is declared, its value."""
    for each in fields(options):
        value = getattr(options, each.name)
        declared = each.metadata.get(_DECLARED)
        if declared is None:
            yield from _options(value)
        elif isinstance(declared, _Declared):
            yield each.name, declared, value


def _spelt(name: str, declared: _Declared, value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        value = joined(value)
    if isinstance(value, bool) and _has_value(name, declared):
        value = str(value).lower()
    if value is None:
        return ()
    if isinstance(value, bool):
        return (flag_of(name) if value else contrary_of(name),)
    return flag_of(name), str(value)


def _has_value(name: str, declared: _Declared) -> bool:
    """Whether even true and false are values of the child's flag."""
    config = declared.config
    return config is not None and _knob(config, name).metadata["kind"] == "value"
