"""The server's certificate and key, read and checked before anything else is done."""

import ssl
from pathlib import Path

from processes.settings import BadConfig
from router.http.server.settings import FrontConfig


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
    _require("--ssl-certfile", certfile, "-----BEGIN CERTIFICATE-----")
    _require("--ssl-keyfile", keyfile, "PRIVATE KEY-----")
    try:
        # For an encrypted key OpenSSL would ask at the terminal, and wait.
        context.load_cert_chain(certfile, keyfile, password="")
    except (ssl.SSLError, OSError) as error:
        rule = f"must go with {str(certfile)!r}, and not be encrypted: {error}"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            rule = f"must be the key of the certificate in {str(certfile)!r}"
        raise BadConfig(f"--ssl-keyfile {str(keyfile)!r}: {rule}") from error
    return context


def _require(flag: str, path: Path, begin: str) -> None:
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise BadConfig(f"{flag} {str(path)!r}: {error.strerror or error}") from error
    if begin not in text:
        rule = f"must be PEM, with a `{begin.strip('-')}` in it"
        raise BadConfig(f"{flag} {str(path)!r}: {rule}")
