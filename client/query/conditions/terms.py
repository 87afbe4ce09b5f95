"""The terms of a `where` clause, which refer to holes by name, its operators, and the functions
that the rewritten clause calls.

`reading/` rewrites the clause into calls that build terms. Python variables and functions of
finished values are Values by then. Parts of `and` and `or` are passed as functions, so that
Python's own parts are evaluated only if Python would evaluate them.

    len(X) < n and check(X, Y)
    ->  all_(place, lambda: compare(place, called(place, "len", ref(place, "X")), "<", n),
                    lambda: opaque(place, ("X", "Y"), lambda X, Y: check(X, Y), "check(X, Y)"))

A Python value among the parts works as in Python: a false one ends an `and`.

    Term = Value | Ref | All | AnyOf | Not | Compared | Calculated | Called | Opaque

An operator on a text becomes a term of the server's language, which defines its meaning in both
places: see `constraints.where.evaluate`. Its messages speak of X, which is renamed to the hole.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TypeAlias

from client.query.errors import BadCondition, Place
from constraints.where import terms as where


@dataclass(frozen=True, slots=True)
class Value:
    """A Python value."""

    value: object


@dataclass(frozen=True, slots=True)
class Ref:
    """A hole's value, by its name: finished, current or future."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class AnyOf:
    parts: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Not:
    part: "Term"
    place: Place


@dataclass(frozen=True, slots=True)
class Compared:
    """`left relation right`; relation is <, <=, ==, !=, >=, >, in, not in, is or is not.

    A chain `a < b < c` is an All of two.
    """

    left: "Term"
    relation: str
    right: "Term"
    place: Place


@dataclass(frozen=True, slots=True)
class Calculated:
    """`left symbol right`; symbol is +, - or *. `text`: its source text."""

    left: "Term"
    symbol: str
    right: "Term"
    place: Place
    text: str


@dataclass(frozen=True, slots=True)
class Called:
    """A call of an operator, by its lower-case name (len, words, stops_at, regex, ...)."""

    operator: str
    arguments: tuple["Term", ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Opaque:
    """Any other Python expression: `function(*values of names)`, when these are finished."""

    names: tuple[str, ...]
    function: Callable[..., object]
    place: Place
    text: str


Term: TypeAlias = Value | Ref | All | AnyOf | Not | Compared | Calculated | Called | Opaque


_SHOWN_LEN = 60


def written(term: Term) -> str:
    """The term on one line, with the present values of Python's variables."""
    match term:
        case Value(value):
            shown = repr(value)
            return shown if len(shown) <= _SHOWN_LEN else shown[: _SHOWN_LEN - 1] + "…"
        case Ref(name):
            return name
        case Opaque(text=text) | Calculated(text=text):
            return text
        case Called(operator, arguments):
            return f"{operator}({', '.join(map(written, arguments))})"
        case Compared(left, relation, right):
            return f"{_within(left)} {relation} {_within(right)}"
        case Not(part):
            return f"not {_within(part)}"
        case All(parts):
            return " and ".join(
                f"({written(part)})" if isinstance(part, AnyOf) else written(part) for part in parts
            )
        case AnyOf(parts):
            return " or ".join(map(written, parts))


def _within(term: Term) -> str:
    return f"({written(term)})" if isinstance(term, All | AnyOf | Compared) else written(term)


SUBJECT = "X"
# Quoted texts come from the program and stay unchanged. An apostrophe opens no quote.
_PARTS = re.compile(r"""(?P<quoted>"(?:[^"\\]|\\.)*"|(?<!\w)'(?:[^'\\]|\\.)*')|\bX\b""")


def rename_subject(message: str, name: str) -> str:
    """A message about X, with the name of the hole instead."""
    if name == SUBJECT:
        return message
    return _PARTS.sub(lambda part: part["quoted"] or name, message)


@contextmanager
def errors_about(name: str) -> Iterator[None]:
    """Context: BadCondition errors about X name the hole instead."""
    try:
        yield
    except BadCondition as error:
        raise BadCondition(rename_subject(error.message, name), error.place) from error.__cause__


# The measure that `len` counts, by the operator inside of it.
PIECES = {
    "words": where.Measure.WORDS,
    "sentences": where.Measure.SENTENCES,
    "tokens": where.Measure.TOKENS,
    "characters": where.Measure.CHARS,
    "chars": where.Measure.CHARS,
}
# Numbers of arguments: minimum, maximum (None: any).
_ARITIES: dict[str, tuple[int, int | None]] = {
    "len": (1, 1),
    "int": (1, 1),
    "float": (1, 1),
    "type": (1, 1),
    "regex": (2, 2),
    "starts_with": (2, None),
    "ends_with": (2, None),
    "stops_at": (2, None),
    "stops_before": (2, None),
    **dict.fromkeys(PIECES, (1, 1)),
}
_USAGES = {
    "len": "len(X), len(words(X)), len(sentences(X)) or len(tokens(X))",
    "regex": 'regex(X, r"[a-z]+")',
    "starts_with": 'starts_with(X, "a", "b")',
    "ends_with": 'ends_with(X, ".", "!")',
    "stops_at": 'stops_at(X, ".")',
    "stops_before": 'stops_before(X, "\\n")',
    "type": "type(X) is int",
}
# The spellings of LMQL's paper.
_ALIASES = {"stop_at": "stops_at", "stop_before": "stops_before", "startswith": "starts_with"}

# All names of operators, in lower case.
OPERATORS = frozenset(_ARITIES) | frozenset(_ALIASES)
STOPS = frozenset({"stops_at", "stops_before"})


def operator_of(called: Called) -> str:
    """The operator's name, checked together with the number of its arguments."""
    name = called.operator.lower()
    name = _ALIASES.get(name, name)
    if name not in _ARITIES:
        close = get_close_matches(name, _ARITIES, n=1)
        hint = f"; did you mean `{close[0]}`?" if close else ""
        raise BadCondition(f"`{called.operator}` is no operator of conditions{hint}", called.place)
    at_least, at_most = _ARITIES[name]
    given = len(called.arguments)
    if given < at_least or (at_most is not None and given > at_most):
        needed = f"{at_least} or more" if at_most is None else str(at_least)
        usage = _USAGES.get(name, f"{name}(X)")
        if given and isinstance(about := called.arguments[0], Ref):
            usage = rename_subject(usage, about.name)
        plural = "" if needed == "1" else "s"
        what = f"`{name}` takes {needed} argument{plural}, as in {usage}. Given: {given}"
        raise BadCondition(what, called.place)
    return name


def text_term(name: str, arguments: Sequence[object], place: Place) -> where.Expression:
    """The condition on a text; `arguments`: those behind the text."""
    match name:
        case "float":
            return where.IsFloat()
        case "int":
            return where.IsInt()
        case "regex":
            return where.Matches(_pattern(arguments[0], place))
        case "starts_with":
            return where.StartsWith(_phrases(name, arguments, place))
        case "ends_with":
            return where.EndsWith(_phrases(name, arguments, place))
    phrases = _phrases(name, arguments, place)
    if not phrases or "" in phrases:
        raise BadCondition(
            f"`{name}` needs phrases that are not empty, as in {_USAGES[name]}", place
        )
    return where.StopsAt(phrases) if name == "stops_at" else where.StopsBefore(phrases)


def strings(value: object) -> tuple[str, ...] | None:
    """The distinct strings of a collection; None: it is no collection of strings.

    Those of a set are sorted, so that equal programs send equal constraints.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return None
    items = list(value)
    if not all(isinstance(item, str) for item in items):
        return None
    return tuple(sorted(items) if isinstance(value, set | frozenset) else dict.fromkeys(items))


def _phrases(name: str, arguments: Sequence[object], place: Place) -> tuple[str, ...]:
    """Strings, or one collection of them."""
    phrases = strings(
        arguments[0] if len(arguments) == 1 and not _is_text(arguments) else arguments
    )
    if phrases is None:
        shown = ", ".join(map(repr, arguments))
        raise BadCondition(f"the phrases of `{name}` are strings. Given: {shown}", place)
    return phrases


def _is_text(arguments: Sequence[object]) -> bool:
    return isinstance(arguments[0], str) or not isinstance(arguments[0], Iterable)


def _pattern(value: object, place: Place) -> str:
    if not isinstance(value, str):
        raise BadCondition(f"a pattern is a string. Given: {value!r}", place)
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadCondition(f"the pattern is wrong: {error}. Given: {value!r}", place) from error
    return value


def uncounted_parts(shown: str, place: Place) -> BadCondition:
    """The error for parts that are compared or calculated with, uncounted."""
    return BadCondition(f"{shown} can only be counted: write len({shown})", place)


def refuse_awaitable(value: object, place: Place | None, shown: str | None = None) -> None:
    """Raise BadCondition for an awaitable; `shown`: its source text."""
    if not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # no warning that it was never awaited
    what = "this" if shown is None else f"`{shown}`"
    raise BadCondition(
        f"{what} is a call of an async function, which conditions cannot await: use a plain one",
        place,
    )


def term(place: Place | None, value: object) -> Term:
    """A term unchanged, anything else as a Value."""
    if isinstance(value, Term):
        return value
    refuse_awaitable(value, place)
    # An iterator could be read only once.
    return Value(list(value) if isinstance(value, Iterator) else value)


def ref(place: Place, name: str) -> Term:
    return Ref(name, place)


def all_(place: Place, *parts: Callable[[], object]) -> Term:
    return _joined(place, parts, All, neutral=True)


def any_(place: Place, *parts: Callable[[], object]) -> Term:
    return _joined(place, parts, AnyOf, neutral=False)


def _joined(
    place: Place,
    parts: Sequence[Callable[[], object]],
    kind: type[All] | type[AnyOf],
    *,
    neutral: bool,
) -> Term:
    """Evaluates the parts, as far as Python would."""
    held: list[Term] = []
    for part in parts:
        made = term(place, part())
        if not isinstance(made, Value):
            held.append(made)
        elif bool(made.value) is not neutral:
            return Value(not neutral)
    if not held:
        return Value(neutral)
    return held[0] if len(held) == 1 else kind(tuple(held), place)


def not_(place: Place, part: object) -> Term:
    made = term(place, part)
    return Value(not made.value) if isinstance(made, Value) else Not(made, place)


def compare(place: Place, left: object, relation: str, right: object) -> Term:
    return Compared(term(place, left), relation, term(place, right), place)


def calculated(place: Place, left: object, symbol: str, right: object, text: str) -> Term:
    """One arithmetic operation. Raises BadCondition for words(X) and the like."""
    sides = term(place, left), term(place, right)
    for side in sides:
        if isinstance(side, Called) and side.operator.lower() in PIECES:
            raise uncounted_parts(written(side), place)
    return Calculated(sides[0], symbol, sides[1], place, text)


def called(place: Place, operator: str, *arguments: object) -> Term:
    return Called(operator, tuple(term(place, argument) for argument in arguments), place)


def opaque(
    place: Place, names: tuple[str, ...], function: Callable[..., object], text: str
) -> Term:
    return Opaque(names, function, place, text)
