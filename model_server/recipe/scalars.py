"""Numbers of a formula, measured in the small model and found again in the real model's config.

A scalar is 1, or a number of the config, its inverse or its root. The small config makes the ones
that it changes unlike all others, so that a number says where it comes from.
"""

from typing import Any

from model_server.recipe.recipe import Unreadable
from model_server.recipe.small import NO_SCALARS, numbers

_PRECISION = 1e-5  # of a scalar that is measured in float32


def scalars(config: Any) -> dict[tuple[str, str], float]:
    """Form and field -> the number, for every one that may be a scalar."""
    found: dict[tuple[str, str], float] = {}
    for name, value in numbers(config).items():
        if name not in NO_SCALARS and value > 0:
            found["itself", name] = float(value)
            found["inverse", name] = 1 / value
            found["root", name] = value**0.5
    return found


def named(measured: float, config: Any, what: str) -> float:
    """The number of the config that was measured. Raises Unreadable if there is none."""
    candidates = (1.0, *scalars(config).values())
    nearest = min(candidates, key=lambda candidate: abs(candidate - measured))
    if not abs(nearest - measured) <= _PRECISION * abs(measured):
        raise Unreadable(f"{what} is {measured:.6g}, and no number of the config says so")
    return nearest


def real(value: float, small: Any, config: Any, what: str) -> float:
    """What a scalar of the small config is in the real one. Raises Unreadable if that is unclear.

    A number that no field names is a constant of the class.
    """
    if value == 1:
        return value
    known = scalars(config)
    forms = [form for form, number in scalars(small).items() if number == value]
    values = {known.get(form) for form in forms} or {value}
    found = values.pop()
    if found is None or values:
        raise Unreadable(f"{what} is {value:.6g} in a narrow model, and its source is not clear")
    return found
