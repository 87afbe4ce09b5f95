"""Is a shard's socket served, does the router answer? Questions, asked without waiting long."""

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path
from types import MappingProxyType

_PATIENCE_S = 2.0
# An address for all interfaces is one to listen at, not one to call.
_REACHED_AT = MappingProxyType({"0.0.0.0": "127.0.0.1", "::": "::1"})


def socket_listens(path: Path) -> bool:
    """True when some process accepts connections at this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def address(hostname: str, port: int, *, has_tls: bool = False) -> str:
    """The URL at which a client of this machine reaches a server that listens at `hostname`."""
    host = _REACHED_AT.get(hostname, hostname)
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def answers_health(
    hostname: str, port: int, *, has_tls: bool = False, uds: Path | None = None
) -> bool:
    """True when GET /health/ready answers 200, at a unix socket if one is given."""
    host = _REACHED_AT.get(hostname, hostname)
    tls = _trusting() if has_tls else None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            if uds is not None:
                name = host if has_tls else None
                reader, writer = await asyncio.open_unix_connection(
                    str(uds), ssl=tls, server_hostname=name
                )
            else:
                reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            with contextlib.closing(writer):
                writer.write(
                    b"GET /health/ready HTTP/1.1\r\nHost: health\r\nConnection: close\r\n\r\n"
                )
                status_line = await reader.readline()
    except (OSError, TimeoutError):
        return False
    return status_line.split()[1:2] == [b"200"]


def _trusting() -> ssl.SSLContext:
    """TLS to our own child, whose certificate is for the name that others know it by."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
