"""API keys: every path needs one but health, the pages for people, and by default /metrics.

Routes for who runs the server need the admin key in its place.

A path that does not exist needs one too. Clients that open a WebSocket often cannot set headers:
there a key may also be the password of Basic authentication (or the user, if there is no password),
which is what a client makes of `http://KEY@host`, or `?key=` of the address.

Keys come as flags, or from a file in TOML with a name, a digest, a share and limits of each:

    [[keys]]
    name = "search-team"
    sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    weight = 2
    max_concurrent_requests = 16
    requests_per_minute = 600
    tokens_per_minute = 200000
    constraint_seconds_per_minute = 20

All but the first two may be absent. It holds no key, so that whoever reads it has none.
"""

import base64
import binascii
import hmac
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from processes.instruments import Counter
from processes.settings import BadConfig
from router.http.errors import Dialect, HttpError
from router.http.server.access import AccessRecord, is_probe, refuse
from router.http.server.page import is_page
from router.request.request import NO_KEY, ApiKey

_METRICS_PATH = "/metrics"
# For who runs the server; their routes `require_admin`.
LOAD_PATH = "/v1/load_lora_adapter"
UNLOAD_PATH = "/v1/unload_lora_adapter"
_ADMIN_PATHS = (LOAD_PATH, UNLOAD_PATH)
_REFUSAL = HttpError(
    401,
    "invalid_api_key",
    "a valid API key is needed; send it as `Authorization: Bearer KEY`",
    headers={"www-authenticate": "Bearer"},
)
_ADMIN_REFUSAL = HttpError(
    401,
    "invalid_api_key",
    "the admin key is needed (--admin-api-key); send it as `Authorization: Bearer KEY`",
    headers={"www-authenticate": "Bearer"},
)
_SOCKET_REFUSAL = HttpError(
    401,
    "invalid_api_key",
    "a valid API key is needed; send it as `Authorization: Bearer KEY`, as the password of Basic "
    "authentication, or as `?key=KEY`",
    headers={"www-authenticate": "Bearer, Basic"},
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_MAX_WEIGHT = 1000.0
_REQUIRED = ("name", "sha256")


class KeyRing:
    """The keys that are known now. Owned by whoever may replace them; read with each request."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def names(self) -> list[str]:
        """What logs and metrics call the keys."""
        return [key.name for key in self._keys]

    def of_digest(self, digest: bytes) -> ApiKey | None:
        """The key, if it is known now; where no key is needed, that of the empty digest."""
        known = self._keys or (NO_KEY,)
        return next((key for key in known if key.digest == digest), None)

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """Others from now on; requests that were admitted stay."""
        self._keys = tuple(keys)

    def find(self, sent_keys: Iterable[bytes]) -> ApiKey | None:
        """The key that was sent, if one is known."""
        found = None
        for sent in sent_keys:
            # Of equal length, compared to the end, every one: the time depends on no key.
            digest = sha256(sent).digest()
            for known in self._keys:
                if hmac.compare_digest(digest, known.digest):
                    found = known
        return found


NO_KEYS = KeyRing(())


class ApiKeyAuth:
    """ASGI middleware; `refusals` counts by reason what it refuses.

    The key of one of `admins` opens their paths alone.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing,
        refusals: Counter,
        *,
        protects_metrics: bool,
        admins: KeyRing = NO_KEYS,
    ) -> None:
        assert keys, "without keys nobody gets in"
        self._app = app
        self._keys = keys
        self._admins = admins
        self._refusals = refusals
        self._protects_metrics = protects_metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands one request on, or answers 401."""
        if self._is_open(scope) or self._has_key(scope):
            await self._app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        if scope["type"] != "http" or scope["method"] not in ("GET", "HEAD"):
            return False
        if scope["path"] == _METRICS_PATH:
            return not self._protects_metrics
        return is_probe(scope["method"], scope["path"]) or is_page(scope["method"], scope["path"])

    def _has_key(self, scope: Scope) -> bool:
        takes_x_api_key = Dialect.of_path(scope["path"]) is Dialect.ANTHROPIC
        sent_keys = [*_sent_keys(scope["headers"], takes_x_api_key=takes_x_api_key)]
        if scope["type"] == "websocket":
            sent_keys += _socket_keys(scope)
        if scope["path"] in _ADMIN_PATHS and self._admins.find(sent_keys) is not None:
            return True
        found = self._keys.find(sent_keys)
        record = AccessRecord.within(scope)
        if record is not None and found is not None:
            record.key = found
        return found is not None

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = _SOCKET_REFUSAL if scope["type"] == "websocket" else _REFUSAL
        self._refusals.inc(refusal.error_type)
        await refuse(refusal, scope, receive, send)


def require_admin(headers: Iterable[tuple[bytes, bytes]], admins: KeyRing) -> None:
    """Raises HttpError (401) for a request without the key of one of `admins`."""
    if admins.find(_sent_keys(headers, takes_x_api_key=False)) is None:
        raise _ADMIN_REFUSAL


def _sent_keys(headers: Iterable[tuple[bytes, bytes]], *, takes_x_api_key: bool) -> Iterable[bytes]:
    for name, value in headers:
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                yield key.strip()
        elif name == b"x-api-key" and takes_x_api_key:
            yield value.strip()


def _socket_keys(scope: Scope) -> Iterable[bytes]:
    """The keys that only a WebSocket's handshake may bring; see the module's docstring."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            scheme, _, credentials = value.partition(b" ")
            if scheme.lower() == b"basic":
                yield from _basic_key(credentials.strip())
    # A key may be of any bytes: Latin-1 has a character for each, plain or escaped.
    query = scope["query_string"].decode("latin-1")
    for name, text in parse_qsl(query, keep_blank_values=True, encoding="latin-1"):
        if name == "key":
            yield text.encode("latin-1")


def _basic_key(credentials: bytes) -> Iterable[bytes]:
    try:
        user, _, password = base64.b64decode(credentials, validate=True).partition(b":")
    except binascii.Error:
        return
    yield password or user


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be a name of at most 64 letters, digits, and . _ @ -")
    return value


def _sha256(value: Any) -> bytes:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError("must be the 64 hexadecimal digits of the key's SHA-256")
    return bytes.fromhex(value)


def _weight(value: Any) -> float:
    if type(value) not in (int, float) or not 1 / _MAX_WEIGHT <= value <= _MAX_WEIGHT:
        raise ValueError(f"must be a number between {1 / _MAX_WEIGHT:g} and {_MAX_WEIGHT:g}")
    return float(value)


def _limit(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


_RULES: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "name": _name,
        "sha256": _sha256,
        "weight": _weight,
        "max_concurrent_requests": _limit,
        "requests_per_minute": _limit,
        "tokens_per_minute": _limit,
        "constraint_seconds_per_minute": _limit,
    }
)


def plain_keys(keys: Sequence[str]) -> tuple[ApiKey, ...]:
    """Keys that are given as they are: named by their places, without limits, of equal weight."""
    return tuple(
        ApiKey(f"api-key-{number}", sha256(key.encode()).digest())
        for number, key in enumerate(keys, 1)
    )


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys. Raises BadConfig, with the entry, the field and its rule."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from error
    entries = document.get("keys")
    if document.keys() - {"keys"} or not isinstance(entries, list) or not entries:
        raise BadConfig(f"{path}: must be a list of [[keys]], at least one, and nothing else")
    keys = tuple(_key(f"{path}: keys[{index}]", entry) for index, entry in enumerate(entries))
    for what, values in (
        ("name", [key.name for key in keys]),
        ("sha256", [key.digest.hex() for key in keys]),
    ):
        double = next((value for value in values if values.count(value) > 1), None)
        if double is not None:
            raise BadConfig(f"{path}: two keys have the {what} {double}")
    return keys


def _key(place: str, entry: Any) -> ApiKey:
    if not isinstance(entry, dict):
        raise BadConfig(f"{place}: must be a table")
    unknown = sorted(entry.keys() - _RULES.keys())
    if unknown:
        raise BadConfig(f"{place}.{unknown[0]}: is none of {', '.join(_RULES)}")
    for name in _REQUIRED:
        if name not in entry:
            raise BadConfig(f"{place}.{name}: is missing")
    values: dict[str, Any] = {}
    for name, value in entry.items():
        try:
            values[name] = _RULES[name](value)
        except ValueError as error:
            raise BadConfig(f"{place}.{name}: {error}. Given: {str(value)[:60]!r}") from error
    digest = values.pop("sha256")
    return ApiKey(digest=digest, **values)
