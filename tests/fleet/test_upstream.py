"""One request to a server and its answer, byte by byte."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from fleet.errors import NotReached, ResponseCut, ServerGone
from fleet.upstream import Address, HostAddress, StreamedBody, get, send_request
from router.http.errors import HttpError

Pieces = list[bytes]


@asynccontextmanager
async def answering(
    socket: Path, pieces: Pieces, heard: Callable[[bytes], None] = lambda _: None
) -> AsyncIterator[Path]:
    """A server that says these pieces one by one, whatever it is asked, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard(await reader.readuntil(b"\r\n\r\n"))
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(socket))
    async with server:
        yield socket


async def body_of(socket: Address, method: str = "GET") -> tuple[int, bytes]:
    answer = await send_request(socket, method, b"/x", [(b"host", b"h")])
    try:
        return answer.status, b"".join([piece async for piece in answer.chunks()])
    finally:
        answer.close()


WHOLE = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
CONTINUED = b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" + WHOLE


@pytest.mark.parametrize("said", [WHOLE, CHUNKED, CONTINUED], ids=["length", "chunks", "1xx"])
async def test_an_answer_is_whole_wherever_it_is_cut(tmp_path: Path, said: bytes) -> None:
    for cut in range(1, len(said)):
        socket = tmp_path / f"{cut}.sock"
        async with answering(socket, [said[:cut], said[cut:]]):
            assert await body_of(socket) == (200, b"hello")


async def test_an_answer_to_head_has_no_body(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]) as s:
        assert await body_of(s, "HEAD") == (200, b"")


@pytest.mark.parametrize("said", [WHOLE[:-1], CHUNKED[:-4]], ids=["length", "chunks"])
async def test_an_answer_that_is_not_whole_is_cut(tmp_path: Path, said: bytes) -> None:
    async with answering(tmp_path / "s", [said]) as s:
        with pytest.raises(ResponseCut):
            await body_of(s)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200", b"nonsense\r\n\r\n"])
async def test_no_answer_at_all_is_a_server_that_is_gone(tmp_path: Path, said: bytes) -> None:
    async with answering(tmp_path / "s", [said]) as s:
        with pytest.raises(ServerGone):
            await body_of(s)
    with pytest.raises(ServerGone):
        await body_of(tmp_path / "nobody")


async def test_a_server_at_a_host_answers_as_well() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        assert await body_of(HostAddress("127.0.0.1", port)) == (200, b"hello")
        # It speaks no TLS.
        with pytest.raises(NotReached):
            await body_of(HostAddress("127.0.0.1", port, "localhost"))
    with pytest.raises(NotReached):
        await body_of(HostAddress("127.0.0.1", port))


async def test_a_streamed_body_is_sent_as_it_comes_and_its_fault_is_its_senders(
    tmp_path: Path,
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b"12"
        yield b"345"

    async def broken() -> AsyncIterator[bytes]:
        yield b"12"
        raise HttpError(408, "slow_sender", "too slow")

    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(asyncio.IncompleteReadError):
            heard.append(await reader.readexactly(5))
            writer.write(WHOLE)
        writer.close()

    server = await asyncio.start_unix_server(serve, str(tmp_path / "s"))
    async with server:
        answer = await send_request(tmp_path / "s", "POST", b"/x", [], StreamedBody(5, pieces()))
        assert (await answer.read(), heard) == (b"hello", [b"12345"])
        answer.close()
        with pytest.raises(HttpError, match="too slow"):
            await send_request(tmp_path / "s", "POST", b"/x", [], StreamedBody(5, broken()))


async def test_a_request_is_framed_by_its_body_alone(tmp_path: Path) -> None:
    heard: list[bytes] = []
    async with answering(tmp_path / "s", [WHOLE], heard.append) as s:
        answer = await send_request(
            s, "POST", b"/a?b=c", [(b"host", b"h"), (b"x-y", b"z")], b"12345"
        )
        answer.close()
    assert heard == [
        b"POST /a?b=c HTTP/1.1\r\nhost: h\r\nx-y: z\r\ncontent-length: 5\r\n"
        b"connection: close\r\n\r\n"
    ]


async def test_what_is_asked_for_alone_is_a_status_and_a_body_or_a_reason(tmp_path: Path) -> None:
    async with answering(tmp_path / "s", [WHOLE]) as s:
        assert (await get(s, "/x", [], 5.0))[:2] == (200, b"hello")
    async with answering(tmp_path / "cut", [WHOLE[:-1]]) as s:
        status, reason, _ = await get(s, "/x", [], 5.0)
    assert (status, b"broke its answer off" in reason) == (0, True)
    assert (await get(tmp_path / "nobody", "/x", [], 5.0))[0] == 0
