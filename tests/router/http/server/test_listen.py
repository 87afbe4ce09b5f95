"""The bound socket: its address, why it cannot be bound, what its connections inherit."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from router.http.server.listen import HttpServer, ListenFailed, bind, bind_unix


def test_an_address_in_use_is_named() -> None:
    bound = bind("127.0.0.1", 0)
    bound.socket.listen()
    port = bound.socket.getsockname()[1]
    try:
        with pytest.raises(ListenFailed, match=f"cannot listen at 127.0.0.1:{port}: .*in use"):
            bind("127.0.0.1", port)
    finally:
        bound.close()


def test_a_name_that_does_not_exist_is_named() -> None:
    with pytest.raises(ListenFailed, match=r"--hostname no\.such\.host\.invalid: "):
        bind("no.such.host.invalid", 0)


def test_a_socket_that_was_left_behind_is_replaced_and_any_other_file_stays(tmp_path: Path) -> None:
    place = tmp_path / "s"
    bind_unix(place).close()
    assert place.is_socket()
    bind_unix(place).close()
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(ListenFailed, match=f"--http-uds {file}: .*in use"):
        bind_unix(file)
    assert file.read_text() == "precious"


def test_the_address_is_a_url() -> None:
    for tls, scheme in ((None, "http"), (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https")):
        bound = bind("127.0.0.1", 0, tls)
        port = bound.socket.getsockname()[1]
        assert bound.address == f"{scheme}://127.0.0.1:{port}"
        bound.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_the_address_of_ipv6_is_in_brackets() -> None:
    bound = bind("::1", 0)
    assert bound.address.startswith("http://[::1]:")
    bound.close()


async def test_the_kernel_takes_little_of_what_a_client_does_not_read() -> None:
    sent_len = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent_len
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent_len < 50_000_000:
            await send({"type": "http.response.body", "body": b"x" * 1000, "more_body": True})
            sent_len += 1000

    bound = bind("127.0.0.1", 0)
    server = HttpServer(app, bound, stop_timeout_s=0.1)
    await server.start()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        client.connect(bound.socket.getsockname())
        client.sendall(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        before_len = -1
        while sent_len != before_len:
            before_len = sent_len
            await asyncio.sleep(0.2)
    await server.stop()

    # Megabytes without the option.
    assert 0 < before_len < 400_000
