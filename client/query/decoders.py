"""The decoders as functions for `decoder=`; programs use the same syntax.

Common options:
    max_tokens  limit for each hole; None: what the model's context leaves
    max_len     limit for all holes of a trace together
    tries       the most requests of one hole, when checks fail on its text
    stops       how a stop phrase ends a hole: "cut" drops the rest of a token behind it, "exact"
                forbids tokens that run past it
    normalised  whether distributions choose by the mean log-probability per token
Raises ValueError with the option, its value and the rule.
"""

from typing import Literal, Unpack

from client.query.running.decoders import Decoding, decoding
from client.sampling import SamplingOptions


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
    options = {
        "n": n,
        "max_tokens": max_tokens,
        "max_len": max_len,
        "tries": tries,
        "stops": stops,
        "normalised": normalised,
    }
    return _decoding("sample", {**options, **sampling})


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
    """Beam search over the whole program: the `n` most probable traces, best first.

    A trace's score is its log-probability / (its tokens ** length_penalty). `early_stopping`: True
    stops as soon as n traces have ended, False when no other can be better at its present length,
    "never" when none can be better at any length up to `max_len`. Stop phrases work as with
    `stops="exact"`.
    """
    return _decoding("beam", locals())


def _decoding(name: str, options: dict[str, object]) -> Decoding:
    return decoding(
        name, (), {option: value for option, value in options.items() if value is not None}
    )
