"""The whole router in front of a FakeShard: in-process for shapes, behind uvicorn for streams."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.types import ASGIApp

from router.engine.batcher import BatcherLimits
from router.engine.validation import Limits, Validation
from router.http.answers import READS_ALL, ReadingRules
from router.http.app import Services, create_app
from router.http.lmtp.session import Sockets
from router.http.operations import Judges
from router.http.server.auth import KeyRing, plain_keys
from router.http.server.listen import HttpServer, bind
from router.http.server.protocol import ConnectionLimits
from router.http.server_info import ServerInfo
from router.shards.shards import ShardTimeouts
from router.text.chat_template import ChatTemplate
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE
from tests.checks import FakeChecks
from tests.fakes import FakeShard
from tests.router.rig import MODEL_NAMES, QUICK, Rig, byte_tokenizer, routing

MAX_INPUT_LEN = 120
MAX_TOTAL_LEN = 160
SEED = 7


@dataclass(frozen=True, slots=True)
class House:
    """A running router with its HTTP application."""

    app: ASGIApp
    shard: FakeShard
    rig: Rig
    sockets: Sockets

    @property
    def client(self) -> httpx.AsyncClient:
        """An HTTP client that calls the application in-process."""
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://tandem", timeout=30
        )


@asynccontextmanager
async def housing(
    shard: FakeShard,
    *,
    max_concurrent_requests: int = 8,
    with_template: bool = True,
    templates: Mapping[str, str] | None = None,
    max_body_len: int = 100_000,
    max_duration_s: float | None = None,
    takes_grammars: bool = True,
    checks: FakeChecks | None = None,
    judges: Judges | None = None,
    batcher_limits: BatcherLimits | None = None,
    timeouts: ShardTimeouts = QUICK,
    shares_prefixes: bool = False,
    sampling_defaults: Mapping[str, float] | None = None,
    reading_rules: ReadingRules = READS_ALL,
    max_total_len: int = MAX_TOTAL_LEN,
    clock: Callable[[], float] = monotonic,
    blind_reason: str | None = None,
    **edge: Any,
) -> AsyncIterator[House]:
    """Everything between HTTP and a shard, for the time of a test; `edge` is for create_app."""
    tokenizer = byte_tokenizer()
    limits = Limits(
        max_input_len=max_total_len - MAX_TOTAL_LEN + MAX_INPUT_LEN,
        max_total_len=max_total_len,
        vocab_size=VOCAB_SIZE,
        sampling_defaults=sampling_defaults or {},
        eos_token_ids=(EOS_ID,),
        max_duration_s=max_duration_s,
        takes_grammars=takes_grammars,
        shares_prefixes=shares_prefixes,
    )
    if "api_keys" in edge and not isinstance(edge["api_keys"], KeyRing):
        keys = plain_keys(edge["api_keys"])
        edge["api_keys"] = KeyRing(keys) if keys else None
    batcher_limits = batcher_limits or BatcherLimits(
        max_concurrent_requests=max_concurrent_requests, retry_s=0.05, tick_s=0.02
    )
    async with routing(shard, limits=batcher_limits, timeouts=timeouts, clock=clock) as rig:
        services = Services(
            infer=rig.infer,
            validation=Validation(
                limits, tokenizer, checks or FakeChecks(), draw_seed=lambda: SEED
            ),
            tokenizer=tokenizer,
            chat_template=ChatTemplate(
                (templates or tokenizer.chat_templates) if with_template else {},
                "<s>",
                "</s>",
                control_tokens=tokenizer.control_tokens,
            ),
            metrics=rig.metrics,
            info=ServerInfo(
                model_id=MODEL_NAMES[0],
                aliases=MODEL_NAMES[1:],
                limits=limits,
                version="0.0.1",
                created_s=1_700_000_000,
                max_concurrent_requests=max_concurrent_requests,
                validation_workers=2,
                compute_type="test",
                blind_reason=blind_reason,
            ),
            adapters=rig.adapters,
            judges=judges,
            reading_rules=reading_rules,
        )
        app = create_app(services, max_body_len=max_body_len, **edge)
        yield House(app, shard, rig, services.sockets)


@asynccontextmanager
async def listening(
    app: ASGIApp, rules: ConnectionLimits | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The application behind a real server on the loopback; gives its port."""
    server = HttpServer(app, bind("127.0.0.1", 0, tls), 1.0, rules)
    await server.start()
    port = urlsplit(server.address).port
    assert port is not None
    try:
        yield port
    finally:
        await server.stop()


async def open_request(
    port: int, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One request, sent; the answer is for the caller to read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = {
        "host": "tandem",
        "connection": "close",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body)
    await writer.drain()
    return reader, writer


async def record(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """Everything that a server answers to one request, byte for byte."""
    reader, writer = await open_request(port, method, path, body, **headers)
    answer = await asyncio.wait_for(reader.read(), 30)
    writer.close()
    await writer.wait_closed()
    return answer


def unchunked(answer: bytes) -> bytes:
    """The body of an answer in chunked encoding, complete."""
    rest = answer.partition(b"\r\n\r\n")[2]
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        chunk_len = int(size, 16)
        if chunk_len == 0:
            assert rest == b"\r\n"
            return body
        body = body + rest[:chunk_len]
        rest = rest[chunk_len + 2 :]
