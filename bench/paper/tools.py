"""What programs and baselines call: a calculator, and a search over a case's few pages."""

import re
from collections.abc import Mapping

from models.training import arithmetic, search

_SUM = re.compile(r"(\d{1,4})([-+*/])(\d{1,4})")


def calculate(term: str) -> str:
    """`3+4` to `7`; `?` for what is no sum or has no natural result of at most four digits."""
    found = _SUM.fullmatch(term)
    result = found and arithmetic.compute(int(found[1]), found[2], int(found[3]))
    return "?" if result is None else str(result)


def look_up(pages: Mapping[str, str], title: str) -> str:
    """What a search for the title shows."""
    return search.look_up(tuple(pages.items()), title)
