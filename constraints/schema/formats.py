"""Values of `format`: our own patterns, formats of the engine, and annotations.

Formats are asserted, although newer drafts allow them to be annotations: whoever writes
{"format": "date"} wants a date. Unknown formats are annotations, and reported as not enforced.
"""

# Enforced by the engine.
BY_ENGINE = frozenset(("duration", "hostname", "ipv4", "uuid", "uri"))
# The most characters of formats whose patterns allow any number.
MAX_LEN = {"hostname": 253, "email": 254}
# OpenAPI's formats that concern display or storage, not the text.
ANNOTATIONS = frozenset(
    ("password", "binary", "float", "double", "decimal", "unix-time", "unknown")
)
# OpenAPI's and schemars', of integers; those without a size are of machine words.
_SIZES = {"8": 8, "16": 16, "32": 32, "64": 64, "128": 128, "": 64}
RANGES = {
    **{f"int{name}": (-1 << bits - 1, (1 << bits - 1) - 1) for name, bits in _SIZES.items()},
    **{f"uint{name}": (0, (1 << bits) - 1) for name, bits in _SIZES.items()},
}

# The engine's dates have 29 February in every year, and its minutes 61 seconds.
_YEAR = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    rf"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?"
    r"(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_STEPS = r"(?:/(?:[^/~]|~[01])*)*"
_PCHAR = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_SEGMENT_NZ_NC = r"(?:[a-zA-Z0-9._~!$&'()*+,;=@-]|%[0-9a-fA-F]{2})+"
# The engine's have no address of version 4 behind `::`.
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_GROUP = "[0-9a-fA-F]{1,4}"
_LAST_32 = rf"(?:{_GROUP}:{_GROUP}|{_BYTE}(?:\.{_BYTE}){{3}})"
_IPV6 = "|".join(
    (
        rf"(?:{_GROUP}:){{6}}{_LAST_32}",
        *(
            rf"(?:(?:{_GROUP}:){{0,{4 - after}}}{_GROUP})?::(?:{_GROUP}:){{{after}}}{_LAST_32}"
            for after in range(5)
        ),
        rf"::(?:{_GROUP}:){{5}}{_LAST_32}",
        rf"(?:(?:{_GROUP}:){{0,5}}{_GROUP})?::{_GROUP}",
        rf"(?:(?:{_GROUP}:){{0,6}}{_GROUP})?::",
    )
)
_MARKS = "a-zA-Z0-9._~!$&'()*+,;="
_HOST = rf"(?:\[(?:{_IPV6}|[vV][0-9a-fA-F]+\.[{_MARKS}:-]+)\]|(?:[{_MARKS}-]|%[0-9a-fA-F]{{2}})*)"
_USER = rf"(?:(?:[{_MARKS}:-]|%[0-9a-fA-F]{{2}})*@)?"
_REST = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_ROOTED = rf"//{_USER}{_HOST}(?::[0-9]*)?(?:/{_PCHAR}*)*|/(?:{_PCHAR}+(?:/{_PCHAR}*)*)?"
# Without a scheme, the text before the first `:` would be one.
_RELATIVE = rf"(?:{_ROOTED}|{_SEGMENT_NZ_NC}(?:/{_PCHAR}*)*)?{_REST}"
_ABSOLUTE = rf"[a-zA-Z][a-zA-Z0-9+.-]*:(?:{_ROOTED}|{_PCHAR}+(?:/{_PCHAR}*)*)?{_REST}"

# The engine's domains have parts of any length.
_ATOM = "[a-zA-Z0-9_!#$%&'*+/=?^`{|}~-]+"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_LITERAL = rf"\[(?:{_BYTE}(?:\.{_BYTE}){{3}}|IPv6:(?:{_IPV6}))\]"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM})*@(?:{_LABEL}(?:\.{_LABEL})*|{_LITERAL})"
_BASE64 = r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
_HEX = "[0-9a-fA-F]"


def _uuid(version: int) -> str:
    """RFC 9562."""
    return rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


# The engine's, where only a pattern will do.
UUID = rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"

# In the engine's syntax, for the whole text.
PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[tT]{_TIME}",
    "byte": _BASE64,
    # pydantic's and zod's names.
    "base64": _BASE64,
    "base64url": r"(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-]{2}(?:==)?|[A-Za-z0-9_-]{3}=?)?",
    "email": _EMAIL,
    "e164": r"\+[1-9][0-9]{6,14}",
    **{f"uuid{version}": _uuid(version) for version in range(1, 9)},
    "ipv6": _IPV6,
    "json-pointer": _STEPS,
    "relative-json-pointer": rf"(?:0|[1-9][0-9]*)(?:#|{_STEPS})",
    "uri-reference": rf"(?:{_ABSOLUTE}|{_RELATIVE})",
}

KNOWN = tuple(sorted((BY_ENGINE | set(PATTERNS) | set(RANGES) | ANNOTATIONS) - {"unknown"}))
