"""Settings of a process: fields of a dataclass, from which flags, variables, checks and help come.

A flag beats its variable, which beats the default; an empty variable counts as absent. What each
process can be set to stands in its `config.py`.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import StrEnum
from inspect import cleandoc
from itertools import takewhile
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"0", "false", "f", "no", "n", "off", ""})
# How alike a variable is, at least, that was meant as one of ours (difflib).
_TYPO = 0.9
# As alike, and of OpenSSL and OpenTelemetry.
_NOT_OURS = frozenset({"SSL_CERT_FILE", "OTEL_SERVICE_NAME"})

Rule = Callable[[str], Any]
T = TypeVar("T")


class BadConfig(ValueError):
    """A flag or variable that breaks its rule; the text names it, its value and the rule."""


class Group(StrEnum):
    """The titles under which settings are listed, in this order."""

    MODEL = "Model"
    PLACE = "Where it runs"
    HTTP = "HTTP"
    ACCESS = "Access and connections"
    REQUEST = "Limits of one request"
    BATCH = "Limits of all requests"
    TIME = "Time"
    LOGS = "Logs and traces"
    FLEET = "Several models"
    REPLICAS = "Replicas of one model"
    INERT = "Accepted for TGI's sake, without effect"
    REFUSED = "Refused"
    CONSTRAINT = "The constraint and the texts"
    QUANTIZING = "What is written"

    def is_called(self, topic: str) -> bool:
        """Whether its name is `topic`, or its title begins so; in any case, plural or not."""
        words = _singular(topic)
        return words == _singular(self.name) or _singular(self)[: len(words)] == words


class Kind(StrEnum):
    """How a setting is written on a command line.

    VALUE takes a value. SWITCH takes none, and has a contrary; `true` or `false` may stand behind
    it. LIST may be repeated, and its rule gets all the texts between commas; of REPEATED it gets
    each for itself. ARGUMENT has no flag. VARIABLE is set by the environment alone.
    """

    VALUE = "value"
    SWITCH = "switch"
    LIST = "list"
    REPEATED = "repeated"
    ARGUMENT = "argument"
    VARIABLE = "variable"


def _singular(words: str) -> list[str]:
    return [word.rstrip("s") for word in words.lower().split()]


def word(text: str) -> str:
    if not text.strip():
        raise BadConfig("must not be empty")
    return text


def switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise BadConfig("must be true or false")


def setting(
    default: Any,
    help: str,
    rule: Rule = word,
    *,
    group: Group,
    kind: Kind = Kind.VALUE,
    env: bool | tuple[str, ...] = True,
    aliases: tuple[str, ...] = (),
    elsewhere: tuple[str, ...] = (),
    spelling: str | None = None,
    secret: bool = False,
    internal: bool = False,
    front_only: bool = False,
) -> Any:
    """A setting, declared as a field of a config's dataclass; without a default where it is `...`.

    Its variable is the flag's name in capitals, with `env` False there is none, and with names the
    variables are these. `aliases` are older names; `elsewhere` are other servers' names of it,
    which are refused with a hint. `spelling` is a short flag such as -p, or what --help calls an
    argument. What is `secret` no message shows; without `help` --help does not
    list it. The launcher itself sets what is `internal`. Where several models are served,
    `front_only` settings are the front's and no server's.
    """
    metadata = {
        "help": help,
        "rule": switch if kind is Kind.SWITCH and rule is word else rule,
        "group": group,
        "kind": kind,
        "env": env,
        "aliases": aliases,
        "elsewhere": elsewhere,
        "spelling": spelling,
        "secret": secret,
        "internal": internal,
        "front_only": front_only,
    }
    default = MISSING if default is ... else default
    return field(default=default, metadata=metadata, repr=not secret)


def refused(reason: str, **options: Any) -> Any:
    """A setting that is known and not served: only what asks for nothing (0, false) is accepted."""

    def rule(text: str) -> None:
        if text.lower() not in _FALSE:
            raise BadConfig(reason)

    return setting(None, reason, rule, group=Group.REFUSED, **options)


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def variables_of(each: Field[Any]) -> tuple[str, ...]:
    env = each.metadata["env"]
    if isinstance(env, tuple):
        return env
    return tuple(name.upper() for name in (each.name, *each.metadata["aliases"]) if env)


class _Switched(argparse.Action):
    """Stores which of a switch's two flags was used, as its variable would say it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        says_no = (option_string or "").startswith("--no-")
        setattr(namespace, self.dest, str(not says_no).lower())


@dataclass(frozen=True, slots=True)
class Overview:
    """What --help says where there are many settings: examples, and those that people set."""

    examples: str
    names: frozenset[str]


class CommandLine(argparse.ArgumentParser):
    """The command line of some settings.

    With an `overview`, --help says that and the names of groups: `--help GROUP`, `--help FLAG` and
    `--help all` say the rest.
    """

    def __init__(
        self,
        settings: Iterable[Field[Any]],
        prog: str,
        about: str | None,
        overview: Overview | None = None,
    ) -> None:
        super().__init__(
            prog=prog,
            description=cleandoc(about or ""),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=overview is None,
        )
        self._switches: set[str] = set()
        # Of flags, without their dashes.
        self._names = ["help"]
        self._settings = [each for each in settings if each.metadata["kind"] is not Kind.VARIABLE]
        self._overview = overview
        for group in Group:
            members = [each for each in self._settings if each.metadata["group"] is group]
            section = self.add_argument_group(group) if members else self
            for each in members:
                self._declare(section, each)
        self.usage = f"{prog} [--flag VALUE] ..."

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """The values of flags by the names of settings and aliases: a text, or a list of texts of
        what may be repeated. Raises BadConfig; --help prints to stdout and exits."""
        if self._overview is not None:
            self._answer_help(argv, self._overview)
        self._require_known(argv)
        found = vars(self.parse_intermixed_args(list(self._spelt_out(argv))))
        return {name: value for name, value in found.items() if value not in (None, [])}

    def error(self, message: str) -> NoReturn:
        raise BadConfig(f"{message.removeprefix('argument ')}; see --help")

    def _answer_help(self, argv: Sequence[str], overview: Overview) -> None:
        """Prints what --help asks for, and exits; returns where nothing does."""
        for position, word in enumerate(argv):
            flag, _, topic = word.partition("=")
            if word == "--":
                return
            if flag in ("-h", "--help"):
                titled = takewhile(lambda each: not each.startswith("-"), argv[position + 2 :])
                topic = topic or " ".join([*argv[position + 1 : position + 2], *titled])
                sys.stdout.write(self._help_about(topic, overview))
                raise SystemExit(0)

    def _help_about(self, topic: str, overview: Overview) -> str:
        """Raises BadConfig for a topic that is no group and in no flag's name."""
        word = topic.lower().lstrip("-").replace("-", "_")
        groups = [
            group
            for group in Group
            if any(each.metadata["group"] is group for each in self._settings)
        ]
        meant = [group for group in groups if word and group.is_called(word)]
        if not word:
            shown = [_in_brief(each) for each in self._settings if each.name in overview.names]
        elif word == "all":
            shown = self._settings
        elif meant:
            shown = [each for each in self._settings if each.metadata["group"] in meant]
        else:
            listed = [each for each in self._settings if each.metadata["help"]]
            shown = [each for each in listed if word in (each.name, *each.metadata["aliases"])]
            shown = shown or [each for each in listed if word in each.name]
        if not shown:
            raise BadConfig(
                f"--help {topic!r}: no group and no flag has this name; groups are "
                f"{', '.join(group.name.lower() for group in groups)}, all"
            )
        about = "" if word else f"{self.description}\n\n{overview.examples}"
        text = CommandLine(shown, self.prog, about, overview).format_help()
        if word:
            return text
        lines = [f"  --help {group.name.lower():<10}{group}" for group in groups]
        more = ["More:", *lines, "  --help all", "  --help FLAG      all that is to say of it", ""]
        return "\n".join([text, *more])

    def _require_known(self, argv: Sequence[str]) -> None:
        """Raises BadConfig for a flag that there is not, with the one that may be meant."""
        for word in argv:
            flag = word.partition("=")[0]
            if flag == "--":
                return
            if not flag.startswith("--") or flag[2:] in self._names:
                continue
            name = flag[2:].replace("-", "_")
            meant = [
                flag_of(each.name) for each in self._settings if name in each.metadata["elsewhere"]
            ]
            meant += [f"--{near}" for near in difflib.get_close_matches(flag[2:], self._names, 1)]
            hint = f"; did you mean {meant[0]}?" if meant else "; see --help"
            raise BadConfig(f"{flag}: there is no such flag{hint}")

    def _declare(self, section: Any, each: Field[Any]) -> None:
        meta = each.metadata
        options: dict[str, Any] = {"help": _help_of(each) if meta["help"] else argparse.SUPPRESS}
        if meta["kind"] is Kind.ARGUMENT:
            is_optional = each.default is not MISSING
            metavar = meta["spelling"] or each.name.upper()
            nargs = "*" if is_optional else None
            section.add_argument(each.name, metavar=metavar, nargs=nargs, **options)
            return
        flags = [flag_of(each.name), *([meta["spelling"]] if meta["spelling"] else [])]
        if meta["kind"] is Kind.SWITCH:
            self._switches.add(flags[0])
            options |= {"action": _Switched, "nargs": 0}
            flags.append(flag_of(f"no_{each.name}"))
        else:
            repeats = meta["kind"] in (Kind.LIST, Kind.REPEATED)
            options |= {"metavar": "VALUE", "action": "append" if repeats else "store"}
            options["required"] = each.default is MISSING
        section.add_argument(*flags, dest=each.name, **options)
        self._names += [flag.lstrip("-") for flag in [*flags, *map(flag_of, meta["aliases"])]]
        for alias in meta["aliases"]:
            options |= {"help": f"older name of {flags[0]}"}
            section.add_argument(flag_of(alias), dest=alias, **options)

    def _spelt_out(self, argv: Sequence[str]) -> Iterator[str]:
        """`--switch true` and `--switch=false` as `--switch` and `--no-switch`."""
        words = list(argv)
        while words:
            flag, equals, value = words.pop(0).partition("=")
            if flag in self._switches and not equals and words[:1] in (["true"], ["false"]):
                equals = "="
                value = words.pop(0)
            if flag in self._switches and equals:
                yield flag if switch(value) else f"--no-{flag[2:]}"
            else:
                yield f"{flag}{equals}{value}"


def default_of(each: Field[Any]) -> str:
    """A setting's default as people write it; empty where there is none, or it is no."""
    default: Any = each.default
    if default in (None, MISSING, "", False, ()):
        return ""
    if isinstance(default, tuple):
        return ", ".join(default)
    return "true" if default is True else f"{default}"


def _in_brief(each: Field[Any]) -> Field[Any]:
    """A setting without its older names, and with the first part of its help."""
    brief = copy(each)
    help = re.split(r"[;:.] ", each.metadata["help"], maxsplit=1)[0]
    brief.metadata = MappingProxyType({**each.metadata, "help": help, "aliases": ()})
    return brief


def _help_of(each: Field[Any]) -> str:
    default = default_of(each)
    return f"{each.metadata['help']} (default {default})" if default else str(each.metadata["help"])


def read_settings(kind: type[T], by_flag: Mapping[str, Any], environ: Mapping[str, str]) -> T:
    """A dataclass of settings, from the flags of a command line and an environment.

    Raises BadConfig.
    """
    return kind(**read_values(fields(kind), by_flag, environ))  # type: ignore[arg-type]


def read_values(
    settings: Iterable[Field[Any]], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> dict[str, Any]:
    """The checked values of the settings that a flag or a variable sets. Raises BadConfig."""
    values: dict[str, Any] = {}
    for each in settings:
        meta = each.metadata
        for source, found in sources_of(each, by_flag, environ):
            texts = found if isinstance(found, list) else [found]
            if meta["kind"] is Kind.LIST:
                texts = [",".join(texts)]
            checked = tuple(checked_text(meta, source, text) for text in texts)
            is_several = isinstance(found, list) and meta["kind"] is not Kind.LIST
            values[each.name] = checked if is_several else checked[0]
            break
    return values


def checked_text(meta: Mapping[str, Any], source: str, text: str) -> Any:
    """A setting's value; `source` is where its text stands, for the error. Raises BadConfig."""
    try:
        return meta["rule"](text)
    except BadConfig as error:
        shown = source if meta["secret"] else f"{source} {text!r}"
        raise BadConfig(f"{shown}: {error}") from None


def sources_of(
    each: Field[Any], by_flag: Mapping[str, Any], environ: Mapping[str, str]
) -> Iterator[tuple[str, Any]]:
    """Where a setting was set, the strongest first: (flag or variable, text or texts)."""
    for name in (each.name, *each.metadata["aliases"]):
        if name in by_flag:
            yield flag_of(name), by_flag[name]
    for variable in variables_of(each):
        if environ.get(variable):
            yield variable, environ[variable]


def misspelt_variables(
    settings: Iterable[Field[Any]], environ: Mapping[str, str]
) -> dict[str, str]:
    """Variables that no setting has, with the one that each was probably meant to be."""
    known = {name for each in settings for name in variables_of(each)}
    long_ones = [name for name in known if "_" in name]
    near = {
        name: difflib.get_close_matches(name, long_ones, 1, _TYPO)
        for name in environ
        if name not in known | _NOT_OURS
    }
    return {name: meant[0] for name, meant in near.items() if meant}


def flags_of(settings: Iterable[Field[Any]], by_flag: Mapping[str, Any]) -> list[str]:
    """The flags that set these settings, for another process that has them.

    No secrets, since everybody on the machine sees flags, nothing that the launcher sets, and
    nothing that the environment alone sets.
    """
    flags: list[str] = []
    for each in settings:
        if each.metadata["internal"] or each.metadata["secret"]:
            continue
        if each.metadata["kind"] is Kind.VARIABLE:
            continue
        for name in (each.name, *each.metadata["aliases"]):
            if name not in by_flag:
                continue
            texts = by_flag[name] if isinstance(by_flag[name], list) else [by_flag[name]]
            if each.metadata["kind"] is Kind.SWITCH:
                flags.append(flag_of(name if texts == ["true"] else f"no_{name}"))
            else:
                # In one word, since a value may begin as a flag does.
                flags += [f"{flag_of(name)}={text}" for text in texts]
    return flags
