"""Example texts of the string formats that masks enforce.

A format that the engine enforces by itself is described by a pattern of some of its texts, which
are valid by every definition of the format.
"""

from functools import lru_cache

from constraints.grammars.patterns import Pattern
from constraints.grammars.regex import searching
from constraints.grammars.schema import formats

# The shortest text that is valid by every definition.
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
# The same, by the pattern that replaces the format in a rewritten schema.
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
    """A pattern of texts of a format that the engine enforces. None: unknown format."""
    return searching(f"^(?:{_PATTERNS[name]})$") if name in _PATTERNS else None
