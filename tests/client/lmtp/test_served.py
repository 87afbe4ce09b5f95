"""The client against a whole server, over connections that are cut."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import httpx
import pytest

from client.calls import Answer, Constraint, GenerateCall, GeneratedToken, Message, ScoreCall
from client.lmtp.model import LmtpModel, RetryPolicy
from client.sampling import Sampling
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

RETRY = RetryPolicy(first_pause_s=0.01, max_pause_s=0.05, max_tries=20)
CALLS = [
    pytest.param(GenerateCall(prompt="Once there was", max_tokens=24), id="argmax"),
    pytest.param(
        GenerateCall(prompt="Once", max_tokens=24, sampling=Sampling(temperature=1.0, seed=5)),
        id="sample",
    ),
    pytest.param(
        GenerateCall(
            prompt="Once there was",
            max_tokens=24,
            sampling=Sampling(temperature=1.0, seed=6, repetition_penalty=1.3),
            constraint=Constraint("where", 'len(words(X)) > 6 and stops_at(X, ".")'),
        ),
        id="where",
    ),
    pytest.param(
        GenerateCall(
            prompt="Once there was", max_tokens=24, stop=("lived near",), keeps_stop=False
        ),
        id="stop-string",
    ),
    pytest.param(
        GenerateCall(prompt=(Message("user", "Hello!"),), max_tokens=24, top_logprobs=2),
        id="chat",
    ),
    pytest.param(
        GenerateCall(
            prompt="é", max_tokens=30, constraint=Constraint("regex", "(é|ü|\U0001f600){12}")
        ),
        id="split-characters",
    ),
]


@asynccontextmanager
async def cutting(port: int, lens: range) -> AsyncIterator[tuple[int, list[int]]]:
    """A proxy that resets each connection after so many bytes of the server's; its port, the cuts.

    The handshake and the greeting are some 900 bytes, a token 120.
    """
    draw = random.Random(1)
    cuts: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        left = draw.choice(lens)

        async def up() -> None:
            while chunk := await reader.read(1 << 16):
                up_writer.write(chunk)

        upwards = asyncio.create_task(up())
        while chunk := await up_reader.read(256):
            writer.write(chunk[:left])
            left -= len(chunk)
            if left <= 0:
                await writer.drain()
                cuts.append(left)
                break
        upwards.cancel()
        await asyncio.gather(upwards, return_exceptions=True)
        up_writer.transport.abort()
        writer.transport.abort()

    proxy = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with proxy:
        yield proxy.sockets[0].getsockname()[1], cuts


@pytest.mark.parametrize("call", CALLS)
async def test_a_stream_over_connections_that_are_cut_is_the_stream(
    server: RunningServer, call: GenerateCall
) -> None:
    async with LmtpModel(server.url) as model:
        whole = await model.generate(call)
    async with cutting(server.port, range(800, 1900)) as (port, cuts):
        url = f"127.0.0.1:{port}"
        for _ in range(2):
            async with LmtpModel(url, retry=RETRY) as model:
                parts = [part async for part in model.stream(call)]
            answer = parts[-1]
            assert isinstance(answer, Answer)
            assert answer.text == whole.text
            assert [token.token_id for token in answer.tokens] == [
                token.token_id for token in whole.tokens
            ]
            pieces = "".join(part.text for part in parts[:-1])
            assert whole.text.startswith(pieces)
            assert pieces == "".join(token.text for token in whole.tokens)
            assert answer.finish_reason == whole.finish_reason
            assert answer.usage.num_prompt_tokens == whole.usage.num_prompt_tokens
        assert len(cuts) >= 2
    await assert_idle(server)


async def test_many_streams_share_what_is_cut(server: RunningServer) -> None:
    calls = [
        GenerateCall(
            prompt=f"Once {index}", max_tokens=20, sampling=Sampling(temperature=1.0, seed=index)
        )
        for index in range(12)
    ]
    async with LmtpModel(server.url) as model:
        whole = await asyncio.gather(*[model.generate(call) for call in calls])
    async with cutting(server.port, range(3000, 9000)) as (port, cuts):
        async with LmtpModel(f"127.0.0.1:{port}", retry=RETRY) as model:
            answers = await asyncio.gather(*[model.generate(call) for call in calls])
        assert cuts
    assert [answer.text for answer in answers] == [answer.text for answer in whole]
    await assert_idle(server)


async def test_a_stream_that_is_left_gives_its_room_back(server: RunningServer) -> None:
    async with LmtpModel(server.url) as model:
        for _ in range(5):
            async with aclosing(model.stream(GenerateCall(prompt="Once"))) as stream:
                assert isinstance(await anext(stream), GeneratedToken)
        await assert_idle(server)
        (value,) = (await model.score(ScoreCall(prompt="Once there", values=(" was",)))).values
    assert value.total < 0


async def assert_idle(server: RunningServer, timeout_s: float = 30.0) -> None:
    """Nothing runs and nothing waits."""
    async with asyncio.timeout(timeout_s), httpx.AsyncClient() as http:
        while not _is_idle((await http.get(f"{server.url}/metrics")).text):
            await asyncio.sleep(0.05)


def _is_idle(metrics: str) -> bool:
    values = {
        line.split()[0]: float(line.split()[1]) for line in metrics.splitlines() if line[0] != "#"
    }
    return values["tgi_batch_current_size"] == values["tgi_queue_size"] == 0
