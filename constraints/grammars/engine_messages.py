"""Maps the engine's messages to errors."""

from constraints.errors import (
    ConstraintError,
    Contradiction,
    Malformed,
    NotEnforced,
    TooComplex,
)

_CONTRADICTIONS = ("Unsatisfiable schema", "NoExtensionBias", "Regex is empty")
_NOT_ENFORCED = (
    "Unimplemented keys",
    "Unknown format",
    "oneOf constraints are not supported",
    "circular references with sibling keys",
    "are not disjoint",
    "min/maxProperties only supported",
    "lookarounds not supported",
    "look-around",
    "backreferences are not supported",
)
_TOO_COMPLEX = (
    "too large",
    "too complex",
    "too many",
    "too big",
    "fuel",
    "limit",
    "stack level",
    "recursion",
    "can't determine if",
    "Unable to determine if",
)


def explain(message: str) -> ConstraintError:
    """The error for a message of the engine, with its text."""
    text = message.replace("<non-verbose/>", "").strip()
    kinds: tuple[tuple[type[ConstraintError], tuple[str, ...]], ...] = (
        (Contradiction, _CONTRADICTIONS),
        (NotEnforced, _NOT_ENFORCED),
        (TooComplex, _TOO_COMPLEX),
    )
    for error, phrases in kinds:
        if any(phrase in text for phrase in phrases):
            if "NoExtensionBias" in text:
                text = "no text satisfies the constraint"
            return error(text)
    return Malformed(text)
