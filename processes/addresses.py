"""Addresses of servers on this machine: TCP ports, unix sockets and the private folder of these;
whether one is free, listens, or answers.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import socket
import ssl
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from processes.settings import BadConfig

_HEALTH_TIMEOUT_S = 2.0
_MAX_SOCKET_BYTES = 107
_DISCARD_PORT = 9
_SIOCGIFADDR = 0x8915
# A client's first bytes: the preface, and settings that say nothing (RFC 9113, 3.4).
_HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
# An address for all interfaces is one to listen at, not one to call.
_REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class AddressInUse(Exception):
    """Another process has the port or the socket's path; later it may be free."""


class NoAddress(Exception):
    """An address where no process of this machine, or of this user, can listen."""


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def own_address(peer: str) -> tuple[str, str]:
    """The address of this machine by which it reaches `peer`, and the interface that has it.

    Raises BadConfig.
    """
    try:
        family, *_, place = socket.getaddrinfo(peer, _DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            # It sends nothing.
            probe.connect(place)
            host: str = probe.getsockname()[0]
            names = [name for _, name in socket.if_nameindex()]
            of_host = next((name for name in names if _has_address(name, host, probe)), None)
    except OSError as error:
        raise BadConfig(f"--master-addr {peer!r}: {error.strerror or error}") from error
    if of_host is None:
        raise BadConfig(f"--master-addr {peer!r}: no interface of this machine has {host} first")
    return host, of_host


def _has_address(interface: str, host: str, probe: socket.socket) -> bool:
    """Whether it is the interface's first IPv4 address, or one of its IPv6 addresses."""
    if probe.family == socket.AF_INET6:
        digits = socket.inet_pton(socket.AF_INET6, host).hex()
        lines = map(str.split, Path("/proc/net/if_inet6").read_text().splitlines())
        return any((line[0], line[-1]) == (digits, interface) for line in lines)
    if host.startswith("127."):
        return interface == "lo"
    with contextlib.suppress(OSError):
        found = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", interface.encode()))
        return socket.inet_ntoa(found[20:24]) == host
    return False


def require_free_port(hostname: str, port: int) -> None:
    """Raises AddressInUse when `port` is taken, before minutes are spent on loading; NoAddress."""
    family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((hostname, port))
        except OSError as error:
            kind = AddressInUse if error.errno == errno.EADDRINUSE else NoAddress
            raise kind(
                f"cannot listen at {hostname}:{port}: {error.strerror}; "
                "choose another with --port or --hostname"
            ) from error


def require_socket_path(flag: str, path: Path, suffix: str = "") -> None:
    """Raises BadConfig when no unix socket can be made at `path` with `suffix`, and AddressInUse
    when a process listens there."""
    place = Path(f"{path}{suffix}")
    subject = f"{flag} {str(path)!r}"
    try:
        rule = _broken_rule(place)
    except OSError as error:
        raise BadConfig(f"{subject}: {error.strerror}") from error
    if rule is not None:
        raise BadConfig(f"{subject}: {rule}")
    if socket_listens(place):
        raise AddressInUse(f"{subject}: must be free, and somebody listens at {place}")


def _broken_rule(place: Path) -> str | None:
    """Why no socket can be there. Raises OSError where the folder cannot be read."""
    if len(os.fsencode(place)) > _MAX_SOCKET_BYTES:
        return f"must be shorter: a unix socket's path has at most {_MAX_SOCKET_BYTES} bytes"
    if place.is_dir():
        return "must be a path for a socket, not a folder"
    if not place.parent.is_dir():
        return f"must be in a folder that exists, and {place.parent} does not"
    if place.exists() and not place.is_socket():
        return f"must not be taken by something else than a socket, and {place} is"
    return None


def socket_listens(path: Path) -> bool:
    """True when some process accepts connections at this unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


async def answers_http2(host: str, port: int) -> bool:
    """True when a gRPC server answers. One that is stopped or hangs accepts connections all the
    same.
    """
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(_HTTP2_HELLO)
                return bool(await reader.read(1))
    except (OSError, TimeoutError):
        return False


def url_of(hostname: str, port: int, *, has_tls: bool = False) -> str:
    """The URL at which a client of this machine reaches a server that listens at `hostname`."""
    host = _REACHED_AT.get(hostname, hostname)
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def answers_health(
    hostname: str, port: int, *, has_tls: bool = False, uds: Path | None = None
) -> bool:
    """True when GET /health/ready answers 200, at a unix socket if one is given."""
    host = _REACHED_AT.get(hostname, hostname)
    tls = _trusting_tls() if has_tls else None
    try:
        async with asyncio.timeout(_HEALTH_TIMEOUT_S):
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


def _trusting_tls() -> ssl.SSLContext:
    """TLS to our own child, whose certificate is for the name that others know it by."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_PREFIX = "tandem-"
# Locked while its folder is used, so that neither process ids nor ages have to be trusted.
_LOCK = "lock"


@contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder that only this user may enter; removed at the end, by the next process if this
    one is killed.
    """
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
        lock = Path(folder, _LOCK)
        unlocked = lock.with_suffix(".new")
        with unlocked.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            unlocked.rename(lock)
            yield Path(folder)


def _remove_abandoned() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # One that is in use, was not made here, or is removed by another process just now.
        with suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                _require_unlocked(folder / _LOCK)
                shutil.rmtree(folder)


def _require_unlocked(lock: Path) -> None:
    """Raises OSError."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
