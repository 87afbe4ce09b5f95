"""Patterns of integers by their value: `-?[0-9]+`, with any number of zeros in front."""


def in_interval(low: int | None, high: int | None) -> str:
    """A pattern of the integers from `low` to `high`, both included; None: no bound.

    The interval is not empty.
    """
    signed = [
        # What the bounds leave of zero and above, and of zero and below by its size.
        ("", max(low or 0, 0), high),
        ("-", max(-high, 0) if high is not None else 0, None if low is None else -low),
    ]
    found = [
        sign + _sizes(least, most) for sign, least, most in signed if most is None or least <= most
    ]
    return f"({'|'.join(found)})"


def equal_to(number: int) -> str:
    """A pattern of one integer."""
    return in_interval(number, number)


def _sizes(least: int, most: int | None) -> str:
    """Digits whose value lies in between."""
    if most is None:
        digits = str(least)
        longer = f"[1-9][0-9]{{{len(digits)},}}"
        nines = int("9" * len(digits))
        return f"0*({longer}|{'|'.join(_same_length(least, nines))})"
    found: list[str] = []
    while least <= most:
        nines = int("9" * len(str(least)))
        found += _same_length(least, min(most, nines))
        least = nines + 1
    return f"0*({'|'.join(found)})"


def _same_length(least: int, most: int) -> list[str]:
    """Patterns of the numbers in between, of two that have equally many digits."""
    first, last = str(least), str(most)
    common = 0
    while common < len(first) and first[common] == last[common]:
        common += 1
    if common == len(first):
        return [first]
    shared, rest = first[:common], len(first) - common - 1
    low_digit, high_digit = int(first[common]), int(last[common])
    return [
        *(shared + first[common] + tail for tail in _tails(first[common + 1 :], is_least=True)),
        *_between(shared, low_digit + 1, high_digit - 1, rest),
        *(shared + last[common] + tail for tail in _tails(last[common + 1 :], is_least=False)),
    ]


def _tails(digits: str, *, is_least: bool) -> list[str]:
    """Patterns of as many digits that are no less, or no more, than these."""
    found = [digits]
    for index, digit in enumerate(digits):
        low, high = (int(digit) + 1, 9) if is_least else (0, int(digit) - 1)
        found += _between(digits[:index], low, high, len(digits) - index - 1)
    return found


def _between(prefix: str, low: int, high: int, rest: int) -> list[str]:
    if low > high:
        return []
    return [f"{prefix}[{low}-{high}]" + (f"[0-9]{{{rest}}}" if rest else "")]
