"""Who reads too slowly from a real socket is cut; who reads gets all."""

import asyncio
import logging
import socket
from time import monotonic

import pytest
from starlette.types import Receive, Scope, Send

from router.http.server.protocol import HIGH_LEN, ConnectionLimits
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request, record
from tests.router.http.server.connection import GET, PATIENCE_S, QUICK, endless, noted, rules
from tests.router.rig import settled


class SlowReader:
    """A client with hardly any buffer, which reads on demand."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.setblocking(False)

    def say(self, words: bytes) -> None:
        self._socket.sendall(words)

    def read(self, most: int) -> int:
        """Bytes that were there, up to `most`."""
        try:
            return len(self._socket.recv(most))
        except BlockingIOError:
            return 0

    def close(self) -> None:
        self._socket.close()


async def until_cut(limits: ConnectionLimits, number: int = 1) -> float:
    """Seconds until so many readers were cut."""
    began_s = monotonic()
    while limits.cuts.value("slow_reader") < number:
        assert monotonic() - began_s < PATIENCE_S, "nobody was cut"
        await asyncio.sleep(0.01)
    return monotonic() - began_s


@pytest.mark.parametrize("declares", [False, True])
@pytest.mark.parametrize("reads", [0, 1])
async def test_a_reader_of_nothing_or_next_to_nothing_is_cut(declares: bool, reads: int) -> None:
    limits = rules()
    async with listening(endless(10_000_000, declares=declares), limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"\r\n")
        cutting = asyncio.ensure_future(until_cut(limits))
        while not cutting.done():
            if reads:
                reader.read(reads)
            await asyncio.sleep(0.01)
        reader.close()

    assert QUICK <= await cutting < PATIENCE_S
    assert limits.cuts.value("slow_reader") == 1


async def test_the_rest_of_a_complete_answer_must_go_too() -> None:
    # More than the kernel takes, less than makes the server wait.
    answering = endless(32_000, declares=True)
    completed = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await answering(scope, receive, send)
        completed.set()

    limits = rules()
    async with listening(app, limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"connection: close\r\n\r\n")
        await asyncio.wait_for(completed.wait(), PATIENCE_S)
        assert limits.cuts.value("slow_reader") == 0
        await until_cut(limits)
        reader.close()

    assert limits.cuts.value("slow_reader") == 1


async def test_what_is_left_of_an_answer_counts_as_part_of_the_next() -> None:
    limits = rules()
    is_first = True
    second = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            await endless(32_000, declares=True)(scope, receive, send)
        else:
            await second.wait()
            await endless(100, declares=True)(scope, receive, send)

    async with listening(app, limits) as port:
        reader = SlowReader(port)
        reader.say((GET + b"\r\n") * 2)
        await asyncio.sleep(2 * QUICK)
        assert limits.cuts.value("slow_reader") == 0
        second.set()
        await until_cut(limits)
        reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("declares", [False, True])
async def test_who_reads_slowly_but_reads_gets_all(declares: bool) -> None:
    limits = rules(write_timeout_s=1.0)
    total_len = 400_000
    read_len = 0
    async with listening(endless(total_len, declares=declares), limits) as port:
        reader = SlowReader(port)
        reader.say(GET + b"connection: close\r\n\r\n")
        began_s = monotonic()
        while read_len < total_len:
            # Some 100 KB in each second, more than the rule asks for.
            read_len += reader.read(3_000)
            await asyncio.sleep(0.02)
            assert monotonic() - began_s < PATIENCE_S
        reader.close()

    assert monotonic() - began_s > 2.0
    assert limits.cuts.value("slow_reader") == 0


async def test_a_cut_stream_ends_its_generation_and_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http")
    shard = FakeShard(script=letters, num_blocks=256)
    shard.faults.delay_s = 0.02
    limits = rules()
    async with housing(shard) as house, listening(house.app, limits) as port:
        reader = SlowReader(port)
        body = b'{"messages": [{"role": "user", "content": "hello"}], "n": 4, "stream": true,'
        body += b'"max_tokens": 100, "logprobs": true, "top_logprobs": 5}'
        reader.say(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"x-request-id: mine\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await until_cut(limits)
        await settled(house.rig)
        reader.close()

        assert sum(method == "Decode" for method, _ in shard.calls) < 90
        assert shard.num_held == 0
        assert house.rig.metrics.request_failure.value("slow_reader") == 1
    lines = [record.getMessage() for record in caplog.records]
    assert any("mine" in line and "bytes untaken" in line for line in lines)
    access = [
        vars(record) for record in caplog.records if record.name == "router.http.server.access"
    ]
    assert [line["error_type"] for line in access] == ["slow_reader"]


async def test_what_waits_for_a_reader_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    protocols = noted(monkeypatch)
    limits = rules(write_timeout_s=1.0)
    largest = 0
    async with listening(endless(10_000_000), limits) as port:
        readers = [SlowReader(port) for _ in range(20)]
        for reader in readers:
            reader.say(GET + b"\r\n")
        for _ in range(50):
            sizes = [one.transport.get_write_buffer_size() for one in protocols]
            largest = max([largest, *sizes])
            await asyncio.sleep(0.01)
        await until_cut(limits, 20)
        await asyncio.sleep(0.05)
        assert [one for one in protocols if one in one.connections] == []
        for reader in readers:
            reader.close()

    assert len(protocols) == 20
    assert HIGH_LEN < largest <= HIGH_LEN + 1000


async def test_a_client_that_reads_later_loses_nothing() -> None:
    async with listening(endless(3_000_000), rules(write_timeout_s=5.0)) as port:
        reader, writer = await open_request(port, "GET", "/")
        await asyncio.sleep(1.0)
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
        writer.close()

    assert answer.count(b"x") == 3_000_000


async def test_a_large_answer_goes_out_whole_and_with_its_length() -> None:
    async with listening(endless(1_000_003, declares=True)) as port:
        answer = await record(port, "GET", "/")

    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-length: 1000003\r\n" in head + b"\r\n"
    assert body == b"x" * 1_000_003
