"""The decoders as functions, for `decoder=`; programs write them the same way.

Options that several take:
    max_tokens  bound of each hole; None: what the model's context leaves
    max_len     bound of all holes of a trace together
    tries       how often one hole is asked at most, when checks fail on its text
    stops       how a stop phrase ends a hole: "cut" drops what a token has behind it, "exact" keeps
                tokens out that run past it
    normalised  whether distributions choose by the mean log-probability per token
Raises ValueError: which option, its value, the rule.
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
    """The most probable token, one after the other."""
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
    """`n` traces whose tokens are drawn; trace i with the seed `seed + i`.

    `sampling` are the fields of Sampling; `temperature` is 1 unless it is one of them.
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
    """Beam search over the whole program: the `n` most probable traces, the best first.

    A trace's score is its log-probability / (its tokens ** length_penalty). `early_stopping`: True
    ends as soon as n traces have ended, False when no other can be better at its present length,
    "never" at any length up to `max_len`. Phrases end its holes as with `stops="exact"`.
    """
    return _decoding("beam", locals())


def _decoding(name: str, options: dict[str, object]) -> Decoding:
    return decoding(
        name, (), {option: value for option, value in options.items() if value is not None}
    )
