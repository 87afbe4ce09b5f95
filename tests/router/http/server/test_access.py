"""The access log, request ids, and the origins whose pages may ask."""

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from router.http.server.access import Access
from router.http.server.listen import HttpServer, bind
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import SEED, housing, listening, open_request, record
from tests.router.http.server.connection import GET, error_of, say
from tests.router.rig import settled

# The keys of an error's body.
SHAPES = {
    "/generate": {"error", "error_type"},
    "/v1/chat/completions": {"error"},
    "/v1/messages": {"type", "error", "request_id"},
}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, logger="router.http.server.access")
    return caplog


async def line_of(
    lines: pytest.LogCaptureFixture, path: str, body: dict[str, object]
) -> dict[str, object]:
    """What the line of one request carries, as JSON would show it."""
    async with housing(FakeShard()) as house, house.client as client:
        await client.post(path, json=body, headers={"x-request-id": "mine"})
    (record,) = (line for line in lines.records if line.name == "router.http.server.access")
    return vars(record)


async def test_an_answer_s_line_has_its_counts_and_times(
    lines: pytest.LogCaptureFixture,
) -> None:
    body: dict[str, object] = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    line = await line_of(lines, "/generate", body)
    wanted = {
        "method": "POST",
        "path": "/generate",
        "route": "/generate",
        "model": "fake/model",
        "status": 200,
        "request_id": "mine",
        "stream": False,
        "num_prompt_tokens": 5,
        "num_cached_tokens": 0,
        "num_generated_tokens": 3,
        "finish_reasons": "length",
    }
    assert line.items() >= wanted.items()
    times = ("validation_ms", "queue_ms", "time_to_first_token_ms", "inference_ms", "total_ms")
    assert all(isinstance(line[name], float) for name in times)
    # Greedy decoding draws nothing, and nobody traces.
    assert not {"seed", "trace_id", "error_type"} & line.keys()


async def test_a_stream_s_line_says_so(lines: pytest.LogCaptureFixture) -> None:
    body: dict[str, object] = {"prompt": "hello", "model": "tgi", "stream": True, "max_tokens": 3}
    line = await line_of(lines, "/v1/completions", body)
    assert (line["route"], line["stream"]) == ("/v1/completions", True)
    assert line["num_generated_tokens"] == 3
    assert line["finish_reasons"] == "length"


async def test_several_answers_share_a_line(lines: pytest.LogCaptureFixture) -> None:
    parameters = {"max_new_tokens": 3, "do_sample": True, "best_of": 2}
    line = await line_of(lines, "/generate", {"inputs": "hello", "parameters": parameters})
    assert line["finish_reasons"] == "length,length"
    assert line["num_generated_tokens"] == 6
    assert line["seed"] in (SEED, SEED + 1)


async def test_a_refused_request_s_line_has_the_client_s_error(
    lines: pytest.LogCaptureFixture,
) -> None:
    line = await line_of(lines, "/generate_stream", {"inputs": "x", "parameters": {"top_k": -1}})
    assert line["error_type"] == "validation"
    assert "finish_reasons" not in line


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("num_sequences", [1, 2])
async def test_the_line_of_a_client_that_left_has_the_tokens_that_were_made(
    lines: pytest.LogCaptureFixture, streams: bool, num_sequences: int
) -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    body = {"prompt": "hello", "max_tokens": 100, "n": num_sequences, "stream": streams}
    async with housing(shard) as house, listening(house.app) as port:
        _, writer = await open_request(port, "POST", "/v1/completions", json.dumps(body).encode())
        while len([method for method, _ in shard.calls if method == "Decode"]) < 4:
            await asyncio.sleep(0.005)
        writer.close()
        await settled(house.rig)
    (line,) = (vars(line) for line in lines.records if line.name == "router.http.server.access")
    assert line["error_type"] == "cancelled"
    # A token each of the prefill and of two decodes at least: all but the last two were answered.
    assert 3 * num_sequences <= line["num_generated_tokens"] < 20 * num_sequences
    assert "finish_reasons" not in line


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_the_line_of_a_request_that_failed_has_the_tokens_that_were_made(
    lines: pytest.LogCaptureFixture, path: str
) -> None:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.02
    body: dict[str, object] = {"inputs": "hello", "parameters": {"max_new_tokens": 100}}
    async with housing(shard) as house, house.client as client:
        asking = asyncio.create_task(client.post(path, json=body))
        while len([method for method, _ in shard.calls if method == "Decode"]) < 4:
            await asyncio.sleep(0.005)
        shard.faults.row_errors[None] = "a row went wrong"
        await asking
    (line,) = (vars(line) for line in lines.records if line.name == "router.http.server.access")
    assert line["error_type"] == "generation"
    assert 3 <= line["num_generated_tokens"] < 20


async def test_a_text_line_has_the_same_words(lines: pytest.LogCaptureFixture) -> None:
    body: dict[str, object] = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    await line_of(lines, "/generate", body)
    (line,) = (record for record in lines.records if record.name == "router.http.server.access")
    said = line.getMessage()
    assert said.startswith("POST /generate 200 total_ms=")
    for word in ("request_id=mine", "num_prompt_tokens=5", "finish_reasons=length"):
        assert f" {word}" in said
    # What is not, or only for programs, is in JSON alone.
    for word in ("status", "stream", "num_cached_tokens", "seed", "validation_ms"):
        assert f" {word}=" not in said


async def test_what_is_no_generation_is_logged_at_debug(lines: pytest.LogCaptureFixture) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await client.get("/health")
    (record,) = (line for line in lines.records if line.name == "router.http.server.access")
    assert record.levelno == logging.DEBUG
    assert "model" not in vars(record)


CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "model": "fake/model"}
COMPLETION = {"prompt": "hello", "max_tokens": 3}
NATIVE = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
RESPONSE = {"input": "hello", "max_output_tokens": 3}


@pytest.mark.parametrize(
    ("path", "body", "is_stream"),
    [
        ("/", NATIVE, False),
        ("/", NATIVE | {"stream": True}, True),
        ("/generate_stream", NATIVE, True),
        ("/invocations", NATIVE, False),
        ("/vertex", {"instances": [NATIVE]}, False),
        ("/v1/completions", COMPLETION, False),
        ("/v1/chat/completions", CHAT, False),
        ("/v1/chat/completions", CHAT | {"stream": True}, True),
        ("/v1/responses", RESPONSE, False),
        ("/v1/responses", RESPONSE | {"stream": True}, True),
        ("/v1/messages", CHAT, False),
        ("/v1/messages", CHAT | {"stream": True}, True),
    ],
)
async def test_every_route_that_generates_logs_its_end(
    lines: pytest.LogCaptureFixture, path: str, body: dict[str, object], is_stream: bool
) -> None:
    line = await line_of(lines, path, body)
    assert (line["status"], line["stream"]) == (200, is_stream), lines.text
    assert line["finish_reasons"] == "length"
    assert line["num_generated_tokens"] == 3
    assert isinstance(line["inference_ms"], float)


@pytest.mark.parametrize("path", ["/generate", "/v1/chat/completions", "/v1/messages"])
async def test_a_bug_outside_of_the_routes_is_an_error_in_the_path_s_dialect(path: str) -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async with listening(Access(broken)) as port:
        request = f"POST {path} HTTP/1.1\r\nhost: a\r\nx-request-id: mine\r\n"
        answer = await say(port, request.encode() + b"connection: close\r\n\r\n")

    error = error_of(answer, 500)
    assert "request_id mine" in str(error)
    assert error.keys() == SHAPES[path]


async def test_a_request_that_the_server_s_end_cancels_gets_a_503() -> None:
    began = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        began.set()
        await asyncio.sleep(60)

    server = HttpServer(Access(slow), bind("127.0.0.1", 0), 1.0)
    await server.start()
    answer = asyncio.create_task(say(int(server.address.rpartition(":")[2]), GET + b"\r\n"))
    await began.wait()
    await server.stop()

    assert error_of(await answer, 503)["error_type"] == "draining"


HOME = "https://home.example"
PREFLIGHT = {
    "origin": HOME,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization, content-type, x-api-key, x-stainless-os",
}


@pytest.mark.parametrize("edge", [{}, {"api_keys": ["k"]}, {"allowed_origins": [HOME]}])
async def test_a_preflight_needs_no_key_and_may_ask_for_any_header(edge: dict[str, Any]) -> None:
    async with housing(FakeShard(), **edge) as house, house.client as client:
        answer = await client.options("/v1/chat/completions", headers=PREFLIGHT)

    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] in ("*", HOME)
    assert {"GET", "POST", "OPTIONS"} <= set(
        answer.headers["access-control-allow-methods"].split(", ")
    )
    allowed = answer.headers["access-control-allow-headers"]
    for name in ("authorization", "content-type", "x-api-key", "x-stainless-os"):
        assert name in allowed
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/info", 401),
        ("POST", "/generate", 401),
        ("GET", "/health", 200),
    ],
)
async def test_answers_and_refusals_can_be_read_by_pages(
    method: str, path: str, status: int
) -> None:
    async with housing(FakeShard(), api_keys=["k"]) as house, house.client as client:
        answer = await client.request(method, path, headers={"origin": HOME})

    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == "*"
    exposed = answer.headers["access-control-expose-headers"].split(", ")
    assert {"x-request-id", "retry-after", "x-total-time"} <= set(exposed)
    assert "x-request-id" in answer.headers


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), ("/generate", 405)])
async def test_errors_can_be_read_by_pages_too(path: str, status: int) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(path, headers={"origin": HOME})

    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == "*"


async def test_only_the_listed_origins_are_allowed() -> None:
    async with (
        housing(FakeShard(), allowed_origins=[HOME, "http://b.org"]) as house,
        house.client as client,
    ):
        mine = await client.get("/info", headers={"origin": HOME})
        other = await client.get("/info", headers={"origin": "https://evil.example"})
        asked = await client.options(
            "/generate", headers={**PREFLIGHT, "origin": "https://evil.example"}
        )

    assert mine.headers["access-control-allow-origin"] == HOME
    assert mine.headers["vary"] == "Origin"
    assert "access-control-allow-origin" not in other.headers
    assert asked.status_code == 400
    assert "access-control-allow-origin" not in asked.headers
    assert asked.text == "Disallowed CORS origin"


async def test_who_is_no_page_sees_nothing_of_it() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get("/info")

    assert not any(name.startswith("access-control") for name in answer.headers)
    assert "vary" not in answer.headers


async def test_a_stream_reaches_a_page_event_by_event() -> None:
    body = b'{"inputs": "hello", "parameters": {"max_new_tokens": 3}}'
    async with housing(FakeShard()) as house, listening(house.app) as port:
        answer = await record(port, "POST", "/generate_stream", body, origin=HOME)

    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"access-control-allow-origin: *" in head
    assert rest.count(b"data: ") == 3
