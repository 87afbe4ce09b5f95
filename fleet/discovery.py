"""Where replicas are that run elsewhere: the addresses behind the names of URLs.

A name is asked for again and again, so that whoever keeps its records, such as a headless Service
of Kubernetes, says which replicas there are.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from fleet.replica_pool import ReplicaPool
from fleet.upstream import HostAddress

_logger = logging.getLogger("fleet")
_EVERY_S = 5.0


class Discovery:
    """Keeps a pool's replicas those of some URLs. Each is named HOST:PORT, by its address."""

    def __init__(
        self,
        urls: Sequence[str],
        pool: ReplicaPool,
        graceful_timeout_s: float,
        every_s: float = _EVERY_S,
    ) -> None:
        self._urls = urls
        self._pool = pool
        self._graceful_timeout_s = graceful_timeout_s
        self._every_s = every_s
        # What is known of a URL stays while its name cannot be resolved.
        self._found: dict[str, dict[str, HostAddress]] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        known: dict[str, HostAddress] | None = None
        while True:
            await asyncio.gather(*(self._resolve(url) for url in self._urls))
            found = {name: at for of_url in self._found.values() for name, at in of_url.items()}
            if found != known:
                known = found
                _logger.info("replicas: %s", ", ".join(sorted(found)) or "none")
                self._pool.replace(found)
            await asyncio.sleep(self._every_s)

    async def stop(self) -> None:
        """Wait until nobody uses a replica, for as long as it may take; they go on."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._graceful_timeout_s):
                await self._pool.until_idle()

    def stop_now(self) -> None:
        """Their clients are cut off elsewhere."""

    async def _resolve(self, url: str) -> None:
        parts = urlsplit(url)
        has_tls = parts.scheme == "https"
        port = parts.port or (443 if has_tls else 80)
        tls_name = parts.hostname if has_tls else None
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(
                parts.hostname, port, type=socket.SOCK_STREAM
            )
        except OSError as error:
            _logger.warning("%s: the name was not resolved: %s", url, error.strerror or error)
            return
        # Of a machine with addresses of both families, one.
        family = min(family for family, *_ in infos)
        hosts = {str(place[0]) for of, *_, place in infos if of is family}
        self._found[url] = {_name(host, port): HostAddress(host, port, tls_name) for host in hosts}


def _name(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
