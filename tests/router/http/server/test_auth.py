"""API keys: where one is needed, how it is sent, and the file that names them."""

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from processes.instruments import Counter
from processes.settings import BadConfig
from router.http.server.access import AccessRecord
from router.http.server.auth import ApiKeyAuth, KeyRing, plain_keys, read_key_file
from router.request.request import ApiKey
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, record

KEYS = ("sk-first", "sk-second")
BODY = b'{"inputs": "hello", "parameters": {"max_new_tokens": 2}}'


@asynccontextmanager
async def guarded(**edge: Any) -> AsyncIterator[House]:
    async with housing(FakeShard(), api_keys=KEYS, **edge) as house:
        yield house


async def test_any_key_lets_in_however_the_scheme_is_spelt() -> None:
    async with guarded() as house, house.client as client:
        for authorization in [
            b"Bearer sk-first",
            b"bearer sk-second",
            b"BEARER  sk-first ",
            b"BeArEr sk-second",
        ]:
            headers = [(b"authorization", authorization), (b"content-type", b"application/json")]
            answer = await client.post("/generate", content=BODY, headers=headers)
            assert answer.status_code == 200


NO_KEYS: list[Any] = [
    [],
    [(b"authorization", b"")],
    [(b"authorization", b"Bearer")],
    [(b"authorization", b"Bearer ")],
    [(b"authorization", b"sk-first")],
    [(b"authorization", b"Basic sk-first")],
    [(b"authorization", b"Bearer SK-FIRST")],
    [(b"authorization", b"Bearer sk-firs")],
    [(b"authorization", b"Bearer sk-first,sk-second")],
    [(b"authorization", b"Bearer sk-first x")],
    [(b"authorization", b"Bearer \xff\xfe\x80")],
    [(b"authorization", "Bearer sk-f\u00fcrst".encode())],
    [(b"x-api-key", b"sk-first")],
]


async def test_anything_else_does_not() -> None:
    async with guarded() as house, house.client as client:
        for headers in NO_KEYS:
            headers = [*headers, (b"content-type", b"application/json")]
            answer = await client.post("/generate", content=BODY, headers=headers)
            assert answer.status_code == 401


PROTECTED = [
    ("POST", "/"),
    ("POST", "/generate"),
    ("POST", "/generate_stream"),
    ("POST", "/health"),
    ("POST", "/invocations"),
    ("POST", "/tokenize"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/info"),
    ("POST", "/docs"),
    ("POST", "/assets/index.js"),
    ("GET", "/api-doc/openapi.json"),
    ("GET", "/v1/models"),
    ("GET", "/nothing"),
    ("GET", "/healthy"),
    ("GET", "/metrics/"),
    ("OPTIONS", "/generate"),
]


async def test_every_path_wants_a_key() -> None:
    async with guarded() as house, house.client as client:
        for method, path in PROTECTED:
            answer = await client.request(method, path)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert len(answer.headers["x-request-id"]) == 32


OPEN = [
    "/",
    "/health",
    "/health/live",
    "/health/ready",
    "/health/progress",
    "/ping",
    "/metrics",
    "/docs",
    "/assets/index.js",
    "/probe",
]


@pytest.mark.parametrize("path", OPEN)
async def test_probes_need_none(path: str) -> None:
    aliases = {"/probe": "/health", "/predict": "/vertex"}
    async with guarded(aliases=aliases) as house, house.client as client:
        answer = await client.get(path)
        head = await client.head(path)
        predict = await client.post("/predict", json={})

    assert answer.status_code == 200
    assert head.status_code != 401
    assert predict.status_code == 401


async def test_metrics_need_a_key_where_the_flag_is_set() -> None:
    async with guarded(protects_metrics=True) as house, house.client as client:
        refused = await client.get("/metrics")
        answer = await client.get("/metrics", headers={"authorization": "Bearer sk-first"})

    assert refused.status_code == 401
    assert answer.status_code == 200
    assert 'tandem_rejected_total{reason="invalid_api_key"} 1.0' in answer.text


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/generate", {"error": str, "error_type": "invalid_api_key"}),
        (
            "/v1/chat/completions",
            {
                "error": {
                    "message": str,
                    "type": "invalid_request_error",
                    "param": None,
                    "code": "invalid_api_key",
                }
            },
        ),
        (
            "/v1/messages",
            {
                "type": "error",
                "error": {"type": "authentication_error", "message": str},
                "request_id": "mine",
            },
        ),
    ],
)
async def test_a_refusal_speaks_the_paths_dialect(path: str, shape: dict[str, Any]) -> None:
    async with guarded() as house, house.client as client:
        answer = await client.post(path, json={}, headers={"x-request-id": "mine"})

    def blanked(found: Any, like: Any) -> Any:
        if isinstance(like, dict):
            assert found.keys() == like.keys()
            return {key: blanked(found[key], like[key]) for key in like}
        return str if like is str and isinstance(found, str) and "API key" in found else found

    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "mine"
    assert blanked(answer.json(), shape) == shape


async def test_anthropics_header_counts_on_anthropics_paths_alone() -> None:
    async with guarded() as house, house.client as client:
        headers = {"x-api-key": "sk-second"}
        messages = await client.post("/v1/messages", json={}, headers=headers)
        chat = await client.post("/v1/chat/completions", json={}, headers=headers)
        wrong = await client.post("/v1/messages", json={}, headers={"x-api-key": "sk"})

    assert messages.status_code == 400
    assert (chat.status_code, wrong.status_code) == (401, 401)


async def test_a_refused_body_leaves_the_connection_usable() -> None:
    async with guarded() as house, listening(house.app) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for body_len in (10, 99_999, 400_000):
            writer.write(
                b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b"
                % (body_len, b"x" * body_len)
            )
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
            assert head.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" not in head
            body_len = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            assert b"invalid_api_key" in await reader.readexactly(body_len)
        writer.write(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 30)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_client_that_asks_before_it_sends_is_answered_at_once() -> None:
    async with guarded() as house, listening(house.app) as port:
        answer = await record(
            port, "POST", "/generate", content_length="2000", expect="100-continue"
        )

    assert answer.startswith(b"HTTP/1.1 401 ")


async def test_a_refusal_is_logged_and_no_line_shows_a_key(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded() as house, house.client as client:
        for key in ("sk-first", "sk-wrong"):
            headers = {"authorization": f"Bearer {key}", "x-request-id": key[3:]}
            await client.post("/generate", content=BODY, headers=headers)
            await client.get("/info", headers=headers)

    lines = [
        vars(record) for record in caplog.records if record.name == "router.http.server.access"
    ]
    refused = [record for record in lines if record.get("error_type") == "invalid_api_key"]
    assert [record["status"] for record in refused] == [401, 401]
    assert {record["request_id"] for record in refused} == {"wrong"}
    assert "sk-" not in caplog.text


async def test_info_shows_no_key() -> None:
    async with guarded() as house, house.client as client:
        answer = await client.get("/info", headers={"authorization": "Bearer sk-first"})

    assert answer.status_code == 200
    assert "sk-" not in json.dumps(answer.json())


@pytest.mark.parametrize(
    ("headers", "query", "reaches"),
    [
        ([], b"", "401"),
        ([(b"authorization", b"Bearer sk-first")], b"", "app"),
        ([(b"authorization", b"Basic " + b64encode(b"user:sk-first"))], b"", "app"),
        ([(b"authorization", b"Basic " + b64encode(b"sk-first:"))], b"", "app"),
        ([(b"authorization", b"Basic " + b64encode(b"sk-first:no"))], b"", "401"),
        ([(b"authorization", b"Basic sk-first")], b"", "401"),
        ([], b"key=sk-first", "app"),
        ([], b"key=sk-other", "401"),
        ([], b"other=sk-first", "401"),
        ([], b"key=%c3%a9", "401"),
        ([], b"key=%ff", "401"),
        ([], b"%ff=%ff&key=sk-first", "app"),
        ([], b"key=s%6b-first", "app"),
        ([], "key=schlüssel".encode(), "app"),
        ([], b"key=schl%c3%bcssel", "app"),
        ([], b"key=schl%fcssel", "401"),
    ],
)
async def test_a_websocket_is_opened_with_a_key_in_one_of_three_places(
    headers: list[tuple[bytes, bytes]], query: bytes, reaches: str
) -> None:
    async def app(*_: object) -> None:
        reached.append("app")

    async def send(message: Any) -> None:
        if message["type"] == "websocket.http.response.start":
            reached.append(str(message["status"]))

    reached: list[str] = []
    guard = ApiKeyAuth(
        app,
        KeyRing(plain_keys((*KEYS, "schlüssel"))),
        Counter("rejected", "", "reason"),
        protects_metrics=False,
    )
    scope = {"type": "websocket", "path": "/", "headers": headers, "query_string": query}
    AccessRecord("mine", 0.0).enter(scope)
    await guard(scope, app, send)  # type: ignore[arg-type]

    assert reached == [reaches]


DIGEST = sha256(b"sk-one").hexdigest()
ENTRY = f'[[keys]]\nname = "a"\nsha256 = "{DIGEST}"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_key_has_a_name_a_share_and_limits(path: Path) -> None:
    limits = "weight = 2\nmax_concurrent_requests = 3\nrequests_per_minute = 4\n"
    limits += "constraint_seconds_per_minute = 6\n"
    path.write_text(f"{ENTRY}{limits}tokens_per_minute = 5\n")

    (key,) = read_key_file(path)

    assert key == ApiKey("a", bytes.fromhex(DIGEST), 2.0, 3, 4, 5, 6)
    assert KeyRing((key,)).find([b"sk-two", b"sk-one"]) is key


def test_all_but_name_and_digest_may_be_absent(path: Path) -> None:
    path.write_text(ENTRY)

    assert read_key_file(path) == (ApiKey("a", bytes.fromhex(DIGEST)),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list of [[keys]], at least one, and nothing else"),
        ("keys = 3", "must be a list of [[keys]], at least one, and nothing else"),
        (f"{ENTRY}[other]", "must be a list of [[keys]], at least one, and nothing else"),
        ("keys = [3]", "keys[0]: must be a table"),
        ("[[keys]", "is not TOML: "),
        ('[[keys]]\nname = "a"', "keys[0].sha256: is missing"),
        (f'[[keys]]\nsha256 = "{DIGEST}"', "keys[0].name: is missing"),
        (f'{ENTRY}key = "sk"', "keys[0].key: is none of name, sha256, weight, "),
        (
            f"{ENTRY}weight = 0",
            "keys[0].weight: must be a number between 0.001 and 1000. Given: '0'",
        ),
        (f"{ENTRY}weight = true", "keys[0].weight: must be a number"),
        (f"{ENTRY}tokens_per_minute = 0", "keys[0].tokens_per_minute: must be a whole number"),
        (f"{ENTRY}requests_per_minute = 1.5", "keys[0].requests_per_minute: must be a whole"),
        (ENTRY.replace('"a"', '"a b"'), "keys[0].name: must be a name"),
        (ENTRY.replace(DIGEST, "sk-one"), "keys[0].sha256: must be the 64 hexadecimal digits"),
        (ENTRY * 2, "two keys have the name a"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), f"two keys have the sha256 {DIGEST}"),
    ],
)
def test_what_is_wrong_is_named(path: Path, text: str, said: str) -> None:
    path.write_text(text)

    with pytest.raises(BadConfig) as wrong:
        read_key_file(path)
    assert str(path) in str(wrong.value)
    assert said in str(wrong.value)


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        read_key_file(path)
