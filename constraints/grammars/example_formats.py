"""Of each format of strings that masks hold: a short text, and texts to choose from.

What the engine holds by itself is described here by a pattern that has a part of those texts, which
every reading of the format allows.
"""

from functools import lru_cache

from constraints.grammars.patterns import Pattern
from constraints.grammars.regex import searching
from constraints.grammars.schema import formats

# The shortest that every reading allows.
TEXTS = {
    "byte": "",
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "duration": "P1D",
    "email": "a@b.cd",
    "hostname": "a",
    "ipv4": "0.0.0.0",
    "ipv6": "::",
    "json-pointer": "",
    "relative-json-pointer": "0",
    "time": "00:00:00Z",
    "uri": "a:b",
    "uri-reference": "",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
# The same by the pattern that a rewritten schema has in a format's place.
TEXTS_BY_PATTERN = {
    f"^(?:{pattern})$": TEXTS[name] for name, pattern in formats.PATTERNS.items() if name in TEXTS
}
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_NUMBER = "(?:0|[1-9][0-9]*)"
_CLOCK = rf"T(?:{_NUMBER}H(?:{_NUMBER}M)?(?:{_NUMBER}S)?|{_NUMBER}M(?:{_NUMBER}S)?|{_NUMBER}S)"
_DAYS = rf"(?:{_NUMBER}Y(?:{_NUMBER}M(?:{_NUMBER}D)?)?|{_NUMBER}M(?:{_NUMBER}D)?|{_NUMBER}D)"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_WORD = "[a-zA-Z0-9_+-]+"
_PCHAR = "[a-zA-Z0-9._~!$&'()*+,;=:@-]"
_PATTERNS = {
    "duration": rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|{_NUMBER}W)",
    "email": rf"{_WORD}(?:\.{_WORD})*@{_LABEL}(?:\.{_LABEL})*\.[a-zA-Z0-9]{{2,63}}",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "uri": (
        rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?://{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?(?:/{_PCHAR}*)*"
        rf"|{_PCHAR}+(?:/{_PCHAR}*)*)(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
    ),
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}


@lru_cache(maxsize=64)
def pattern_of(name: str) -> Pattern | None:
    """Texts of a format that the engine holds. None: it is not known."""
    return searching(f"^(?:{_PATTERNS[name]})$") if name in _PATTERNS else None
