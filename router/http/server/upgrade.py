"""Offers of another protocol, passed over: the same request, as if the offer had not been made.

RFC 9110, 7.8: a server may ignore an `Upgrade`. The parser stops behind the headers of such a
request and leaves its body unread, and Java's client offers h2c with everything that it sends.
"""

from collections.abc import Iterable

_OFFERS = frozenset({b"upgrade", b"http2-settings"})


def without_offer(
    method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]
) -> bytes:
    """The head of a request without what offers, ready to be parsed again."""
    lines = [b"%b %b HTTP/%b" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            options = [option.strip() for option in value.split(b",")]
            value = b", ".join(option for option in options if option.lower() not in _OFFERS)
        if name not in _OFFERS and not (name == b"connection" and not value):
            lines.append(b"%b: %b" % (name, value))
    return b"\r\n".join([*lines, b"", b""])
