"""The address of a server: the forms in which users write it, and its two URLs."""

from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from client.errors import InvalidRequest

_WEBSOCKET = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_HTTP = {"ws": "http", "wss": "https"}


@dataclass(frozen=True, slots=True)
class Address:
    """`websocket` is the URL of LMTP, `http` the root of the other routes.

    The key is in neither: it is sent in a header, so that no log and no message shows it.
    """

    websocket: str
    http: str
    key: str | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is this machine, which needs no proxy."""
        host = urlsplit(self.websocket).hostname or ""
        if host == "localhost":
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False


def read_address(url: str, key: str | None = None) -> Address:
    """`http(s)://`, `ws(s)://` or plain `host:port`, with a path if the server is below one.

    A key may be in the URL, as `?key=...` or in front of the host (a password, or a user alone);
    `key` goes before it. Raises InvalidRequest.
    """
    text = url.strip()
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        _ = parts.port
    except ValueError as error:
        raise _refused(url, str(error)) from None
    if parts.scheme.lower() not in _WEBSOCKET:
        raise _refused(url, f"the scheme is {parts.scheme!r}")
    if not parts.hostname:
        raise _refused(url, "it has no host")
    scheme = _WEBSOCKET[parts.scheme.lower()]
    place = parts.netloc.rpartition("@")[2]
    query = [(name, value) for name, value in parse_qsl(parts.query, True) if name != "key"]
    websocket = urlunsplit((scheme, place, parts.path or "/", urlencode(query), ""))
    root = parts.path.rstrip("/").removesuffix("/lmtp")
    http = urlunsplit((_HTTP[scheme], place, root, "", ""))
    return Address(websocket, http, key or _key_in(parts))


def _key_in(parts: SplitResult) -> str | None:
    keys = [value for name, value in parse_qsl(parts.query) if name == "key"]
    return (keys[0] if keys else None) or unquote(parts.password or parts.username or "") or None


def _refused(url: str, why: str) -> InvalidRequest:
    # The part in front of an @ may be a key.
    shown = url.rpartition("@")[2].partition("?")[0]
    return InvalidRequest(
        f"url must be host:port or begin with http://, https://, ws:// or wss://. "
        f"Given: {shown!r} ({why})",
        error_type="validation",
        field="url",
    )
