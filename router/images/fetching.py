"""An image's file: of a data: URL, or fetched from a public address within a size and a time.

    url -> scheme, host, port -> addresses, all public -> GET from the first -> at most 3 redirects,
                                                                                 each checked so

A client chooses what the server asks, so it must reach nothing that the client could not. The host
is resolved once, and the address that was checked is dialled: no second answer of a name server can
be another one. No proxy and no password file of the environment has a say.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx

from router.images.memory import Held, ImageFile, ImageMemory
from router.request.errors import Overloaded
from router.request.images import ImageRefused

FETCH_S = 10.0
_MAX_REDIRECTS = 3
_MAX_FETCHES = 64
# Within FETCH_S all turns are others', so some end soon.
_RETRY_S = 1.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
# All of IPv6 that is given to hosts. Python counts more as global: what is local to a site, and
# what stands for an address of IPv4, as that of a NAT64 does.
_UNICAST = ipaddress.ip_network("2000::/3")

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
# The addresses of a host at a port. Raises OSError or UnicodeError where there are none.
Resolve = Callable[[str, int], Awaitable[list[str]]]


class Resolver:
    """The system's, in threads of its own: the loop's are few, and slow name servers hold them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_MAX_FETCHES, "resolver")

    async def __call__(self, host: str, port: int) -> list[str]:
        ask = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        return [str(each[4][0]) for each in found]


class ImageFetcher:
    """Reads the URLs of images. Each has at most `max_bytes`, and FETCH_S seconds to come in its
    turn.

    `hosts`: the only ones that are asked; None: all that are public. It holds no connection open:
    the next image is hardly ever of the same host.
    """

    def __init__(
        self,
        max_bytes: int,
        memory: ImageMemory,
        hosts: frozenset[str] | None = None,
        *,
        resolve: Resolve | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        fetch_s: float = FETCH_S,
    ) -> None:
        """`resolve` and `transport` are for tests: who is asked for addresses, who dials them."""
        self._max_bytes = max_bytes
        self._memory = memory
        self._hosts = hosts
        self._resolve = resolve or Resolver()
        # One for all, since to read the certificates that are trusted takes it 40 ms; and no client
        # around it, which would keep cookies.
        self._transport = transport or httpx.AsyncHTTPTransport(
            trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
        )
        self._fetch_s = fetch_s
        self._turns = asyncio.Semaphore(_MAX_FETCHES)

    async def fetch(self, url: str) -> ImageFile:
        """The image's file. Raises ImageRefused, and Overloaded where others take all turns or all
        memory.
        """
        if url[:5].lower() == "data:":
            return self._inline(url)
        has_turn = False
        try:
            async with asyncio.timeout(self._fetch_s) as limit, self._turns:
                has_turn = True
                limit.reschedule(asyncio.get_running_loop().time() + self._fetch_s)
                return await self._follow(httpx.URL(url))
        except httpx.InvalidURL:
            raise ImageRefused("must be a URL") from None
        except TimeoutError:
            if has_turn:
                raise ImageRefused(f"did not come within {self._fetch_s:g} s") from None
            raise Overloaded("as many images are being fetched as may be", _RETRY_S) from None

    def _inline(self, url: str) -> ImageFile:
        head, comma, text = url.partition(",")
        if not comma or not head.lower().endswith(";base64") or not text.isascii():
            raise ImageRefused("must be like data:image/png;base64,...")
        if len(text) > (self._max_bytes + 2) // 3 * 4:
            raise self._too_large()
        held = Held(self._memory)
        held.grow(len(text))
        return ImageFile(text.encode(), held, is_base64=True)

    async def _follow(self, url: httpx.URL) -> ImageFile:
        for _ in range(1 + _MAX_REDIRECTS):
            response = await self._ask(url)
            try:
                location = response.headers.get("location")
                if not (response.is_redirect and location):
                    return await self._body(response)
                url = url.join(location)
            finally:
                await response.aclose()
        raise ImageRefused(f"must not be redirected more than {_MAX_REDIRECTS} times")

    async def _ask(self, url: httpx.URL) -> httpx.Response:
        """The answer's head, of an address that was checked."""
        host = url.raw_host.decode().rstrip(".")
        if url.scheme not in _DEFAULT_PORTS or not host:
            raise ImageRefused("must be a data:, http: or https: URL")
        if url.userinfo:
            raise ImageRefused("must be a URL without a name or password")
        port = url.port or _DEFAULT_PORTS[url.scheme]
        if port not in _DEFAULT_PORTS.values():
            raise ImageRefused("must be at port 80 or 443")
        if self._hosts is not None and host not in self._hosts:
            raise ImageRefused("is of a host from which this server fetches no images")
        address = await self._public_address(host, port)
        request = httpx.Request(
            "GET",
            url.copy_with(host=address, port=port, fragment=None),
            headers={
                "host": url.netloc.decode(),
                "accept": "image/*",
                "accept-encoding": "identity",
                "user-agent": "tandem",
            },
            extensions={
                "sni_hostname": host,
                "timeout": httpx.Timeout(self._fetch_s).as_dict(),
            },
        )
        try:
            return await self._transport.handle_async_request(request)
        except httpx.HTTPError as error:
            raise ImageRefused("could not be fetched: its host did not answer") from error

    async def _public_address(self, host: str, port: int) -> str:
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            found = []
        addresses = [ipaddress.ip_address(each.partition("%")[0]) for each in found]
        # One sentence for both: whoever asks learns nothing of a network that is not public.
        if not addresses or not all(map(_is_public, addresses)):
            raise ImageRefused("must be of a host that is known and public")
        return str(addresses[0])

    async def _body(self, response: httpx.Response) -> ImageFile:
        if response.status_code != 200:
            raise ImageRefused(f"could not be fetched: its host answered {response.status_code}")
        held = Held(self._memory)
        data = bytearray()
        try:
            # As it was sent: nothing is decompressed, so that it cannot grow.
            async for chunk in response.aiter_raw():
                if len(data) + len(chunk) > self._max_bytes:
                    raise self._too_large()
                held.grow(len(chunk))
                data += chunk
        except httpx.HTTPError as error:
            raise ImageRefused("could not be fetched: its host broke off") from error
        return ImageFile(bytes(data), held)

    def _too_large(self) -> ImageRefused:
        return ImageRefused(f"must have at most {self._max_bytes} bytes (--max-image-fetch-size)")


def _is_public(address: IpAddress) -> bool:
    if not address.is_global or address.is_multicast:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    inner = [address.sixtofour, *(address.teredo or ())]
    return address in _UNICAST and all(each is None or _is_public(each) for each in inner)
