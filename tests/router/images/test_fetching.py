"""Images of URLs: public hosts alone are asked, and no answer is larger or slower than allowed.

A resolver that pretends gives hosts their addresses, and whoever dials one of them reaches a server
of the test's on the loopback.
"""

import asyncio
import base64
import gc
import gzip
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import httpx
import pytest

from processes.instruments import Gauge
from router.images.fetching import ImageFetcher, Resolver
from router.images.memory import ImageMemory
from router.request.errors import Overloaded
from router.request.images import ImageRefused

PUBLIC = "93.184.216.34"
MAX_BYTES = 1000
IMAGE = b"an image"
ZIPPED = gzip.compress(bytes(900))
ANSWERS: Mapping[bytes, bytes] = {
    b"/image": b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n" + IMAGE,
    b"/zipped": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + ZIPPED,
    b"/long": b"HTTP/1.1 200 OK\r\n\r\n" + bytes(300_000),
    b"/missing": b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
    b"/broken": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + IMAGE,
    b"/nonsense": b"\0\1\2\3\r\n\r\n",
    b"/kept": b"HTTP/1.1 200 OK\r\nset-cookie: who=you\r\ncontent-length: 8\r\n\r\n" + IMAGE,
    b"/on": b"HTTP/1.1 302 Found\r\nlocation: /image\r\n\r\n",
    b"/round": b"HTTP/1.1 302 Found\r\nlocation: /round\r\n\r\n",
    b"/nowhere": b"HTTP/1.1 302 Found\r\n\r\n",
}


def memory_of(max_bytes: int = 1 << 20) -> ImageMemory:
    return ImageMemory(max_bytes, Gauge("bytes", "of images"))


def redirect_to(url: str) -> bytes:
    return f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {url}\r\n\r\n".encode()


class Dialling(httpx.AsyncBaseTransport):
    """Reaches the test's server instead, and remembers the addresses that were dialled."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._inner = httpx.AsyncHTTPTransport(trust_env=False)
        self.asked: list[tuple[str, str]] = []
        self.cookies: list[str | None] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append((request.url.host, request.headers["host"]))
        self.cookies.append(request.headers.get("cookie"))
        url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._port)
        return await self._inner.handle_async_request(
            httpx.Request("GET", url, headers=request.headers, extensions=request.extensions)
        )


class Net:
    """A fetcher, and what it asked."""

    def __init__(self, dialling: Dialling, hosts: Mapping[str, str | list[str]]) -> None:
        self.dialling = dialling
        self._hosts = hosts
        self._resolver = Resolver()
        self.num_resolved = 0

    async def resolve(self, host: str, port: int) -> list[str]:
        self.num_resolved += 1
        if host not in self._hosts:
            return await self._resolver(host, port)  # numbers are their own addresses
        found = self._hosts[host]
        return [found] if isinstance(found, str) else found

    def fetcher(
        self,
        hosts: frozenset[str] | None = None,
        memory: ImageMemory | None = None,
        fetch_s: float = 10.0,
    ) -> ImageFetcher:
        return ImageFetcher(
            MAX_BYTES,
            memory or memory_of(),
            hosts,
            resolve=self.resolve,
            transport=self.dialling,
            fetch_s=fetch_s,
        )


@asynccontextmanager
async def net(
    hosts: Mapping[str, str | list[str]] | None = None, answers: Mapping[bytes, bytes] = ANSWERS
) -> AsyncIterator[Net]:
    answering: set[asyncio.Task[Any] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        if path == b"/hangs":
            await reader.read()
        writer.write(answers.get(path, ANSWERS[b"/missing"]))
        with suppress(ConnectionError):  # who asked has seen enough
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    known = {f"{name}.example": address for name, address in (hosts or {}).items()}
    async with server:
        yield Net(Dialling(port), {"images.example": PUBLIC, **known})
        await asyncio.gather(*filter(None, answering))


HOSTS: Mapping[str, str | list[str]] = {
    "private": "10.1.2.3",
    "mixed": [PUBLIC, "127.0.0.1"],
    "nobody": [],
}
HOSTILE = [
    "http://127.0.0.1/image",
    "http://localhost/image",
    "http://[::1]/image",
    "http://169.254.169.254/latest/meta-data",
    "http://10.0.0.1/image",
    "http://192.168.1.1/image",
    "http://100.64.0.1/image",
    "http://0.0.0.0/image",
    "http://[::ffff:127.0.0.1]/image",
    "http://[64:ff9b::7f00:1]/image",
    "http://[64:ff9b:1::7f00:1]/image",
    "http://[2002:7f00:1::]/image",
    "http://[::7f00:1]/image",
    "http://[::ffff:0:7f00:1]/image",
    "http://[fec0::1]/image",
    "http://[fd00::1]/image",
    "http://[fe80::1%25eth0]/image",
    "http://224.0.0.1/image",
    "http://2130706433/image",
    "http://0x7f.1/image",
    "http://127.1/image",
    "http://user@images.example/image",
    "http://user:secret@images.example/image",
    "http://images.example:22/image",
    "http://images.example:99999/image",
    "http://private.example/image",
    "http://mixed.example/image",
    "http://nobody.example/image",
    "http:///image",
    "http://[/image",
    "file:///etc/passwd",
    "ftp://images.example/image",
    "gopher://images.example/image",
]


@pytest.mark.parametrize("url", HOSTILE)
async def test_what_is_not_public_is_never_dialled(url: str) -> None:
    async with net(HOSTS) as found:
        with pytest.raises(ImageRefused):
            await found.fetcher().fetch(url)

        assert found.dialling.asked == []


# Without a host the one that redirects is meant.
@pytest.mark.parametrize("url", [url for url in HOSTILE if url != "http:///image"])
async def test_a_redirect_leads_nowhere_that_a_client_could_not_name(url: str) -> None:
    async with net(HOSTS, {b"/go": redirect_to(url)}) as found:
        with pytest.raises(ImageRefused):
            await found.fetcher().fetch("http://images.example/go")

        assert found.dialling.asked == [(PUBLIC, "images.example")]


async def test_the_address_that_was_checked_is_dialled_and_the_host_is_named() -> None:
    async with net() as found:
        assert (await found.fetcher().fetch("http://images.example/image")).data == IMAGE

        assert found.dialling.asked == [(PUBLIC, "images.example")]
        assert found.num_resolved == 1


async def test_redirects_are_followed_three_times_each_resolved_anew() -> None:
    async with net() as found:
        assert (await found.fetcher().fetch("http://images.example/on")).data == IMAGE
        assert found.num_resolved == 2

        with pytest.raises(ImageRefused, match="not be redirected more than 3 times"):
            await found.fetcher().fetch("http://images.example/round")
        assert len(found.dialling.asked) == 2 + 4


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("long", "must have at most 1000 bytes"),
        ("missing", "its host answered 404"),
        ("nowhere", "its host answered 302"),
        ("broken", "its host broke off"),
        ("nonsense", "its host did not answer"),
    ],
)
async def test_an_answer_that_is_no_image_says_what_it_is(path: str, reason: str) -> None:
    async with net() as found:
        with pytest.raises(ImageRefused, match=reason):
            await found.fetcher().fetch(f"http://images.example/{path}")


async def test_a_host_that_does_not_answer_in_time_is_left() -> None:
    async with net() as found:
        with pytest.raises(ImageRefused, match="did not come within"):
            await found.fetcher(fetch_s=0.2).fetch("http://images.example/hangs")


async def test_whoever_gets_no_turn_is_told_to_come_back() -> None:
    """Its own host is not to blame."""
    async with net() as found:
        fetcher = found.fetcher(fetch_s=0.01)
        for _ in range(64):
            await fetcher._turns.acquire()
        with pytest.raises(Overloaded, match="as many images are being fetched"):
            await fetcher.fetch("http://images.example/image")
        assert found.dialling.asked == []


async def test_slow_name_servers_hold_up_no_other_image(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
        if host == "slow.example":
            answered.wait()
        return [(None, None, None, "", (PUBLIC, 80))]

    async with net() as found:
        monkeypatch.setattr("socket.getaddrinfo", look_up)
        fetcher = ImageFetcher(MAX_BYTES, memory_of(), transport=found.dialling)
        slow = [asyncio.create_task(fetcher.fetch("http://slow.example/image")) for _ in range(31)]
        try:
            assert (await fetcher.fetch("http://93.184.216.34/image")).data == IMAGE
            assert not any(task.done() for task in slow)
        finally:
            answered.set()
        await asyncio.gather(*slow)


async def test_a_file_takes_memory_for_as_long_as_somebody_has_it() -> None:
    memory = memory_of(12)
    async with net() as found:
        fetcher = found.fetcher(memory=memory)
        with pytest.raises(ImageRefused):
            await fetcher.fetch("http://images.example/broken")
        gc.collect()
        file = await fetcher.fetch("http://images.example/image")
        assert memory.num_bytes == len(IMAGE)
        for url in ("http://images.example/image", data_url(bytes(6))):
            with pytest.raises(Overloaded, match="--image-memory"):
                await fetcher.fetch(url)
        del file
        gc.collect()
        assert memory.num_bytes == 0


async def test_nothing_is_decompressed() -> None:
    async with net() as found:
        assert (await found.fetcher().fetch("http://images.example/zipped")).data == ZIPPED


async def test_what_a_host_wants_to_be_kept_is_not() -> None:
    async with net() as found:
        fetcher = found.fetcher()
        for _ in range(2):
            assert (await fetcher.fetch("http://images.example/kept")).data == IMAGE

        assert found.dialling.cookies == [None, None]


async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    async with net() as found:
        assert (await found.fetcher().fetch("http://images.example/image")).data == IMAGE


async def test_only_hosts_of_the_list_are_asked() -> None:
    async with net({"other": PUBLIC}) as found:
        fetcher = found.fetcher(frozenset({"images.example"}))
        assert (await fetcher.fetch("http://IMAGES.example./image")).data == IMAGE

        with pytest.raises(ImageRefused, match="fetches no images"):
            await fetcher.fetch("http://other.example/image")
        with pytest.raises(ImageRefused, match="fetches no images"):
            await found.fetcher(frozenset()).fetch("http://images.example/image")
        assert len(found.dialling.asked) == 1


def data_url(data: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(data).decode()


async def test_what_a_data_url_has_is_left_to_whoever_decodes() -> None:
    data = bytes(MAX_BYTES)
    memory = memory_of()
    file = await ImageFetcher(MAX_BYTES, memory, frozenset()).fetch(data_url(data))

    assert file.is_base64
    assert base64.b64decode(file.data) == data
    assert memory.num_bytes == len(file.data)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64", "must be like data:"),
        ("data:image/png,abc", "must be like data:"),
        ("data:image/png;base64,äbcd", "must be like data:"),
        (data_url(bytes(MAX_BYTES + 3)), "must have at most 1000 bytes"),
    ],
)
async def test_a_data_url_that_is_none_is_refused(url: str, reason: str) -> None:
    with pytest.raises(ImageRefused, match=reason):
        await ImageFetcher(MAX_BYTES, memory_of()).fetch(url)
