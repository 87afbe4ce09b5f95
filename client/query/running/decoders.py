"""Decoders by name, as functions for `decoder=` and as clauses of programs: `sample(n=2)`.

Their options are those of `Options`, `Sampling` and `Beam`. Raises ValueError with the option, its
value and the rule.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, Unpack

from client.calls import MAX_PENALTY
from client.query import errors
from client.query.conditions.planner import StopMode
from client.query.errors import BadProgram, Source
from client.query.program import DecoderClause
from client.query.reading.clauses import DECODERS
from client.query.running.backtracking import IndependentTraces
from client.query.running.beams import Beam
from client.query.running.decoding import Options
from client.sampling import MAX_COUNT, SAMPLING_RULES, NumberRule, Sampling, SamplingOptions

# A decoding algorithm. Frozen; has no state between runs.
Decoder: TypeAlias = IndependentTraces | Beam


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decoder with validated options. Made by `argmax()`, `sample()` or `beam()`."""

    name: str
    decoder: Decoder
    options: Options


# A rule in words, and its predicate.
Rule = tuple[str, Callable[[object], bool]]


def _rule(rule: NumberRule) -> Rule:
    return str(rule), rule.allows


_COUNT = _rule(NumberRule(1, MAX_COUNT, is_whole=True))
_SAMPLING: Mapping[str, Rule] = {name: _rule(rule) for name, rule in SAMPLING_RULES.items()}
_OPTIONS: Mapping[str, Rule] = {
    "max_tokens": _COUNT,
    "max_len": _COUNT,
    "tries": _COUNT,
    "stops": ('"cut" or "exact"', lambda value: value in [mode.value for mode in StopMode]),
    "normalised": ("True or False", lambda value: isinstance(value, bool)),
}
# Options of LMQL that change no results here, and that are not supported.
_NEEDLESS = ("chunksize", "step_budget", "verbose", "openai_nonstop", "chunk_timeout", "cache")
_UNSERVED = ("no_repeat_ngram_size",)

_BEAM: Mapping[str, Rule] = {
    "length_penalty": _rule(NumberRule(-MAX_PENALTY, MAX_PENALTY)),
    "early_stopping": (
        'True, False or "never"',
        lambda value: isinstance(value, bool) or value == "never",
    ),
}
# A search over tokens ends holes at stop phrases by masks.
_EXACT: Rule = ('"exact": it searches among what masks allow', lambda value: value == "exact")


def decoding(name: str, arguments: tuple[object, ...], given: Mapping[str, object]) -> Decoding:
    """The decoder of this name. Raises ValueError with the option, its value and the rule."""
    if name not in DECODERS:
        advice = "; use `beam` for the most probable traces" if name == "best_k" else ""
        raise ValueError(f"there is no decoder `{name}`; there are {', '.join(DECODERS)}{advice}")
    if len(arguments) > 1 or (arguments and "n" in given):
        raise ValueError(f"`{name}` takes one unnamed argument: n")
    is_beam = name == "beam"
    rules = {**_SAMPLING, **_OPTIONS, "n": _COUNT}
    if is_beam:
        rules = {**rules, **_BEAM, "stops": _EXACT}
    kept: dict[str, Any] = {"n": 4 if is_beam else 1, "stops": "exact" if is_beam else "cut"}
    for option, value in [*given.items(), *(("n", argument) for argument in arguments)]:
        if option in _NEEDLESS:
            continue
        if option in _UNSERVED:
            warnings.warn(f"`{option}` is not served and ignored", stacklevel=2)
        elif option == "temperature" and name != "sample" and value:
            raise ValueError(f"`{name}` does not draw, so it has no temperature. Given: {value!r}")
        elif option in rules:
            kept[option] = _kept(option, value, rules[option])
        else:
            raise ValueError(f"`{name}` has no option `{option}`{errors.meant(option, rules)}")
    num_traces = kept.pop("n")
    own = {option: kept.pop(option) for option in _BEAM if option in kept}
    sampling = {option: kept.pop(option) for option in _SAMPLING if option in kept}
    sampling.setdefault("temperature", 1.0 if name == "sample" else 0.0)
    options = Options(sampling=Sampling(**sampling), **kept)
    if is_beam:
        return Decoding(name, Beam(num_traces, max_len=options.max_len, **own), options)
    return Decoding(name, IndependentTraces(num_traces, options.tries), options)


def clause_decoding(clause: DecoderClause, source: Source) -> Decoding:
    """The decoder of a program's clause. Raises BadProgram at its place."""
    try:
        return decoding(clause.name, clause.arguments, clause.options)
    except ValueError as error:
        raise BadProgram(str(error), clause.place, source) from error


def _kept(option: str, value: object, rule: Rule) -> object:
    words, keeps = rule
    if not keeps(value):
        raise ValueError(f"{option} must be {words}. Given: {value!r}")
    return value


def argmax(
    *,
    max_tokens: int | None = None,
    max_len: int | None = None,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    tries: int = 10,
    stops: Literal["cut", "exact"] = "cut",
    normalised: bool = False,
) -> Decoding:
    """Greedy decoding: always the most probable token."""
    return _decoding("argmax", locals())


def sample(
    n: int = 1,
    *,
    max_tokens: int | None = None,
    max_len: int | None = None,
    tries: int = 10,
    stops: Literal["cut", "exact"] = "cut",
    normalised: bool = False,
    **sampling: Unpack[SamplingOptions],
) -> Decoding:
    """`n` sampled traces; trace i has the seed `seed + i`.

    `sampling`: fields of Sampling; the default `temperature` is 1.
    """
    options = {**locals()}
    drawn = options.pop("sampling")
    return _decoding("sample", {**options, **drawn})


def beam(
    n: int = 4,
    *,
    length_penalty: float = 0.0,
    early_stopping: bool | Literal["never"] = False,
    repetition_penalty: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    max_tokens: int | None = None,
    max_len: int | None = None,
    normalised: bool = False,
) -> Decoding:
    """Beam search over the whole program: the `n` most probable traces, best first; see `Beam`.

    Stop phrases work as with `stops="exact"`.
    """
    return _decoding("beam", locals())


def _decoding(name: str, options: dict[str, object]) -> Decoding:
    return decoding(
        name, (), {option: value for option, value in options.items() if value is not None}
    )
