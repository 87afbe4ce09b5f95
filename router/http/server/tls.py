"""The server's certificate and key, read and checked before anything else is done."""

import ssl
from pathlib import Path

from processes.settings import BadConfig
from router.http.server.settings import FrontConfig


def server_tls(config: FrontConfig) -> ssl.SSLContext | None:
    """The TLS context that the flags name; None for plain HTTP. Raises as `load_tls`."""
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return None
    return load_tls(config.ssl_certfile, config.ssl_keyfile, config.ssl_keyfile_password)


def load_tls(certfile: Path, keyfile: Path, password: str | None) -> ssl.SSLContext:
    """A server's TLS context. The files are PEM; `certfile` holds the chain, its own first.

    Raises BadConfig with the flag at fault, its value and the rule.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    for flag, path, begin in (
        ("--ssl-certfile", certfile, "-----BEGIN CERTIFICATE-----"),
        ("--ssl-keyfile", keyfile, "PRIVATE KEY-----"),
    ):
        _require(flag, path, begin)
    asked: list[bool] = []

    def give_password() -> str:
        # Without one OpenSSL would ask at the terminal, and wait.
        asked.append(True)
        return password or ""

    try:
        context.load_cert_chain(certfile, keyfile, give_password)
    except (ssl.SSLError, OSError) as error:
        if asked:
            which = "does not open it" if password else "is missing"
            rule = f"is encrypted, and --ssl-keyfile-password {which}"
        elif getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            rule = f"must be the key of the certificate in {str(certfile)!r}"
        else:
            rule = f"must go with {str(certfile)!r}: {error}"
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
