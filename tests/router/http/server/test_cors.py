"""Pages of other origins."""

from typing import Any

import pytest

from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, record

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
