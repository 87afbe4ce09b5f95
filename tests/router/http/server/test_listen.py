"""Binding, the server's life, and TLS."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError

from processes.addresses import answers_health
from processes.settings import BadConfig
from router.front_config import load_tls
from router.http.server.listen import HttpServer, ListenFailed, bind, bind_unix
from router.http.server.protocol import ConnectionLimits
from tests.byte_tokenizer import save_byte_tokenizer
from tests.certificates import Certificate, make_certificate
from tests.fake_script import letters
from tests.fakes import FakeShard, serving
from tests.router.http.harness import House, housing, listening
from tests.router.process import launched
from tests.router.rig import settled, until


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
        await until(lambda: sent_len > 0)
        before_len = -1
        while sent_len != before_len:
            before_len = sent_len
            await asyncio.sleep(0.2)
    await server.stop()

    # Megabytes without the option.
    assert 0 < before_len < 400_000


JSON = {"content-type": "application/json"}


@pytest.fixture
def pem(tmp_path: Path) -> Certificate:
    return make_certificate(tmp_path / "mine")


@asynccontextmanager
async def serving_tls(
    pem: Certificate, rules: ConnectionLimits | None = None, shard: FakeShard | None = None
) -> AsyncIterator[tuple[House, int]]:
    tls = load_tls(pem.cert, pem.key)
    async with (
        housing(shard or FakeShard(script=letters)) as house,
        listening(house.app, rules, tls) as port,
    ):
        yield house, port


def trusting(pem: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=pem.cert)


async def test_sockets_are_served_over_tls_and_closed_with_a_reason(pem: Certificate) -> None:
    async with serving_tls(pem) as (house, port):
        async with connect(f"wss://127.0.0.1:{port}/lmtp", ssl=trusting(pem)) as client:
            await client.send('GENERATE {"stream_id": 1, "prompt": [3, 4], "max_tokens": 2}')
            heard = [str(await client.recv())]
            while '"finish_reason":"length"' not in heard[-1]:
                heard.append(str(await client.recv()))
            await client.send("no frame")
            with pytest.raises(ConnectionClosedError, match="1007"):
                await client.recv()
        await settled(house.rig)

    assert all(text.startswith("TOKEN [") for text in heard)


async def test_answers_and_streams_are_served_over_tls(pem: Certificate) -> None:
    async with (
        serving_tls(pem) as (_, port),
        httpx.AsyncClient(verify=trusting(pem), base_url=f"https://127.0.0.1:{port}") as client,
    ):
        health = await client.get("/health")
        body = {"inputs": "hello", "parameters": {"max_new_tokens": 9}}
        stream = await client.post("/generate_stream", json=body)
        tokens = await client.post("/tokenize", json={"inputs": "x" * 100})

    assert health.status_code == 200
    assert stream.text.count("data: ") == 9
    assert len(tokens.json()) == 100


async def test_files_that_do_not_serve_are_refused_with_the_reason(
    pem: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path / "other")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    for cert, key, words in (
        (tmp_path / "none", pem.key, "--ssl-certfile .*No such file"),
        (pem.cert, tmp_path, "--ssl-keyfile .*directory"),
        (empty, pem.key, "--ssl-certfile .*empty.pem.*BEGIN CERTIFICATE"),
        (pem.cert, pem.cert, "--ssl-keyfile .*PRIVATE KEY"),
        (pem.key, pem.cert, "--ssl-certfile .*BEGIN CERTIFICATE"),
        (broken, pem.key, "broken.pem"),
        (pem.cert, other.key, "--ssl-keyfile .*: must be the key of the certificate in"),
        (pem.cert, pem.encrypted_key, "--ssl-keyfile .*not be encrypted"),
    ):
        with pytest.raises(BadConfig, match=words):
            load_tls(cert, key)


async def test_plain_http_on_the_tls_port_is_turned_away_and_harms_nobody(pem: Certificate) -> None:
    async with serving_tls(pem) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert not answer.startswith(b"HTTP/1.1 200")
        assert await answers_health("127.0.0.1", port, has_tls=True)


async def test_tls_on_the_plain_port_is_turned_away_too() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        with pytest.raises(ssl.SSLError):
            await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, ssl=True), 30)
        assert await answers_health("127.0.0.1", port)
        assert not await answers_health("127.0.0.1", port, has_tls=True)


async def test_a_client_that_takes_nothing_is_cut_over_tls_too(pem: Certificate) -> None:
    rules = ConnectionLimits(write_timeout_s=0.3)
    shard = FakeShard(script=letters, num_blocks=256)
    shard.faults.delay_s = 0.01
    body = b'{"messages": [{"role": "user", "content": "hello"}], "n": 8, "stream": true,'
    body += b'"max_tokens": 100, "logprobs": true, "top_logprobs": 5}'
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    async with serving_tls(pem, rules, shard) as (house, port):
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", port))
        reader = await asyncio.to_thread(
            trusting(pem).wrap_socket, plain, server_hostname="localhost"
        )
        reader.sendall(head + body)
        async with asyncio.timeout(30):
            while not rules.cuts.value("slow_reader"):
                await asyncio.sleep(0.01)
        await settled(house.rig)
        reader.close()

        assert house.rig.metrics.request_failure.value("slow_reader") == 1


async def test_the_router_says_https_and_serves_it(pem: Certificate, tmp_path: Path) -> None:
    tokenizer = save_byte_tokenizer(tmp_path / "tokenizer")
    flags = ("--ssl-certfile", str(pem.cert), "--ssl-keyfile", str(pem.key))
    async with (
        serving(FakeShard()) as address,
        launched(
            "--master-shard-uds-path", address, "--tokenizer-name", str(tokenizer), *flags
        ) as router,
    ):
        line = await router.until_logged("ready at https://127.0.0.1:")
        url = line.split("ready at ")[1].strip()
        async with httpx.AsyncClient(verify=trusting(pem)) as client:
            assert (await client.get(f"{url}/health")).status_code == 200


async def test_a_key_of_another_certificate_stops_the_router_at_its_start(
    pem: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path / "other")
    flags = ("--ssl-certfile", str(pem.cert), "--ssl-keyfile", str(other.key))
    async with launched("--master-shard-uds-path", "/nowhere", *flags) as router:
        assert await router.ended() == 2
        rule = f"must be the key of the certificate in {str(pem.cert)!r}"
        assert f"error: --ssl-keyfile {str(other.key)!r}: {rule}" in "".join(router.log)
        assert "Traceback" not in "".join(router.log)
