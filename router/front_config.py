"""Settings of an HTTP front, the router's and that of several models.

It reads neither the command line nor the environment. Of files it reads the certificate and its
key, so that the launcher can refuse them without loading an HTTP server.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from processes.rules import Whole, file, one_of, seconds, token
from processes.settings import BadConfig, Group, Kind, Rule, setting

LOG_LEVELS = ("debug", "info", "warning", "error", "off")
_MAX_BODY = 2_000_000
_MAX_BODY_WITH_IMAGES = 32_000_000
_TGIS_LEVELS: Mapping[str, str] = MappingProxyType({"trace": "debug", "warn": "warning"})


def _log_level(text: str) -> str:
    """TGI's variable holds levels of its parts, too, which are none of ours."""
    levels = [word.strip().lower() for word in text.split(",") if "=" not in word] or ["info"]
    return str(one_of(*LOG_LEVELS)(_TGIS_LEVELS.get(levels[0], levels[0])))


def _several(rule: Rule) -> Rule:
    """Words between commas, each by its rule; a repeated flag is one text by then."""

    def parse_all(text: str) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(rule(each.strip()) for each in text.split(",")))

    return parse_all


def _api_key(text: str) -> str:
    if not text or any(not "!" <= character <= "~" for character in text):
        raise BadConfig("each key must be visible ASCII characters, without spaces and commas")
    return text


def _origin(text: str) -> str:
    url = urlsplit(text)
    if text != "*" and (not url.scheme or not url.netloc or f"{url.scheme}://{url.netloc}" != text):
        raise BadConfig("must be * or SCHEME://HOST[:PORT], without a path or a slash at the end")
    return text


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Where a front listens, whom it admits, its limits of connections. Timeouts in seconds.

    Raises BadConfig when settings contradict each other.
    """

    hostname: str = setting(
        "127.0.0.1",
        "address to bind; 0.0.0.0 for every interface",
        group=Group.HTTP,
        env=False,
        front_only=True,
    )
    port: int = setting(
        3000,
        "port to bind; a bare router or front takes a free one for 0 and logs it",
        Whole(0, 65535),
        group=Group.HTTP,
        aliases=("aip_http_port",),
        spelling="-p",
        front_only=True,
    )
    http_uds: Path | None = setting(
        None,
        "bind this unix socket, for this user alone, instead of an address and a port",
        Path,
        group=Group.HTTP,
        front_only=True,
    )
    payload_limit: int | None = setting(
        None,
        "bytes of a request's body, at most; absent: 2000000, and 32000000 where a model sees",
        Whole(1),
        group=Group.HTTP,
    )
    socket_message_limit: int = setting(
        8_388_608, "bytes of a WebSocket message, at most", Whole(1024), group=Group.HTTP
    )
    max_socket_streams: int = setting(
        256, "most streams that a WebSocket may have open", Whole(1), group=Group.HTTP
    )

    api_key: tuple[str, ...] = setting(
        (),
        "keys, between commas or by repeating the flag; every request but those for health and "
        "metrics must bring one. The variable is safer: everybody on the machine sees flags",
        _several(_api_key),
        group=Group.ACCESS,
        kind=Kind.LIST,
        secret=True,
        front_only=True,
    )
    api_key_file: Path | None = setting(
        None,
        "the keys' digests with their names, shares and limits, in TOML (docs/access.md); read "
        "again at SIGHUP, which then does not stop the server",
        file,
        group=Group.ACCESS,
        front_only=True,
    )
    front_secret: str | None = setting(
        None,
        "what replicas and their front have in common, so that streams may go on elsewhere",
        token,
        group=Group.ACCESS,
        kind=Kind.VARIABLE,
        secret=True,
    )
    protect_metrics: bool = setting(
        False, "/metrics wants a key too", group=Group.ACCESS, kind=Kind.SWITCH
    )
    cors_allow_origin: tuple[str, ...] = setting(
        ("*",),
        "origins whose pages may ask, between commas or by repeating the flag",
        _several(_origin),
        group=Group.ACCESS,
        front_only=True,
        kind=Kind.LIST,
    )
    ssl_certfile: Path | None = setting(
        None,
        "serve HTTPS with this chain of certificates (PEM)",
        file,
        group=Group.ACCESS,
        front_only=True,
    )
    ssl_keyfile: Path | None = setting(
        None, "the certificate's private key (PEM)", file, group=Group.ACCESS, front_only=True
    )
    header_limit: int = setting(
        32_768, "bytes of a request's headers, at most", Whole(1024), group=Group.ACCESS
    )
    header_timeout: float = setting(
        30.0, "seconds that a client may take to send the headers", seconds, group=Group.ACCESS
    )
    body_timeout: float = setting(
        30.0,
        "seconds in which 16 KiB of the body must come, or the rest",
        seconds,
        group=Group.ACCESS,
    )
    write_timeout: float = setting(
        30.0,
        "seconds after which a client that does not take its answer is cut off",
        seconds,
        group=Group.ACCESS,
    )
    socket_ping_interval: float = setting(
        20.0,
        "seconds between two pings on a WebSocket, and to answer one, before it is closed",
        seconds,
        group=Group.ACCESS,
    )

    graceful_termination_timeout: float = setting(
        90.0, "seconds that running requests get after the first signal", seconds, group=Group.TIME
    )
    parent_pid: int | None = setting(
        None,
        "drain and stop once this process is no longer the parent",
        Whole(1),
        group=Group.TIME,
        env=False,
        internal=True,
    )
    log_level: str = setting(
        "info",
        "least severe lines that are logged, or off; trace and warn are known too, and "
        "levels of TGI's parts are ignored (info,text_generation_router=debug)",
        _log_level,
        group=Group.LOGS,
    )
    json_output: bool = setting(False, "log JSON lines", group=Group.LOGS, kind=Kind.SWITCH)

    def max_body_len(self, *, with_images: bool) -> int:
        """Bytes of a body, where it may have images or not."""
        if self.payload_limit is not None:
            return self.payload_limit
        return _MAX_BODY_WITH_IMAGES if with_images else _MAX_BODY

    def __post_init__(self) -> None:
        if self.api_key and self.api_key_file:
            raise BadConfig("--api-key and --api-key-file: only one of them can be given")
        if (self.ssl_certfile is None) is not (self.ssl_keyfile is None):
            given = "--ssl-certfile"
            missing = "--ssl-keyfile"
            if self.ssl_certfile is None:
                given, missing = missing, given
            raise BadConfig(f"{given} needs {missing} beside it")


def server_tls(config: FrontConfig) -> ssl.SSLContext | None:
    """The TLS context that the flags name; None for plain HTTP. Raises as `load_tls`."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return None
    return load_tls(config.ssl_certfile, config.ssl_keyfile)


def load_tls(certfile: Path, keyfile: Path) -> ssl.SSLContext:
    """A server's TLS context. The files are PEM; `certfile` holds the chain, its own first.

    Raises BadConfig with the flag at fault, its value and the rule.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _require_pem("--ssl-certfile", certfile, "-----BEGIN CERTIFICATE-----")
    _require_pem("--ssl-keyfile", keyfile, "PRIVATE KEY-----")
    try:
        # For an encrypted key OpenSSL would ask at the terminal, and wait.
        context.load_cert_chain(certfile, keyfile, password="")
    except (ssl.SSLError, OSError) as error:
        rule = f"must go with {str(certfile)!r}, and not be encrypted: {error}"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            rule = f"must be the key of the certificate in {str(certfile)!r}"
        raise BadConfig(f"--ssl-keyfile {str(keyfile)!r}: {rule}") from error
    return context


def _require_pem(flag: str, path: Path, begin: str) -> None:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise BadConfig(f"{flag} {str(path)!r}: {error.strerror or error}") from error
    if begin not in text:
        rule = f"must be PEM, with a `{begin.strip('-')}` in it"
        raise BadConfig(f"{flag} {str(path)!r}: {rule}")
