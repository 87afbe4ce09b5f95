"""Ranges of whole numbers as patterns of digits without leading zeros."""


def between(low: int, high: int) -> str:
    """The digits of the numbers from `low`, 0 or more, to `high`."""
    options: list[str] = []
    while low <= high:
        last = min(high, 10 ** len(str(low)) - 1)
        options.extend(_same_length(str(low), str(last)))
        low = last + 1
    return f"(?:{'|'.join(options)})" if options else r"[^\x{0}-\x{10FFFF}]"


def at_least(low: int) -> str:
    """The digits of the numbers from `low` on, 0 or more."""
    length = len(str(low))
    return f"(?:{between(low, 10**length - 1)}|[1-9][0-9]{{{length},}})"


def _same_length(low: str, high: str) -> list[str]:
    """Alternatives of the numerals from `low` to `high`, which are of one length."""
    if low == high:
        return [low]
    rest = len(low) - 1
    if low[0] == high[0]:
        return [low[0] + each for each in _same_length(low[1:], high[1:])]
    if not rest:
        return [_digits(low[0], high[0])]
    options: list[str] = []
    first = int(low[0])
    last = int(high[0])
    if low[1:] != "0" * rest:
        options += [low[0] + each for each in _same_length(low[1:], "9" * rest)]
        first += 1
    tail: list[str] = []
    if high[1:] != "9" * rest:
        tail = [high[0] + each for each in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        options.append(f"{_digits(str(first), str(last))}[0-9]{{{rest}}}")
    return options + tail


def _digits(first: str, last: str) -> str:
    return first if first == last else f"[{first}-{last}]"
