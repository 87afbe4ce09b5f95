"""The front over HTTP: routes, names, passing in both directions, leaving, dying, waiting."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio

from fleet.front import is_of_loaded_model, methods_of
from fleet.model_table import ModelState
from fleet.names import AnyModel
from router.http.app import openapi_without_server
from tests.fleet.harness import Listeners, RunningFleet, listening, running_fleet

# All tests share a loop, and the listeners in it.
pytestmark = pytest.mark.asyncio(loop_scope="module")

# An adapter is of one model, and so are batches: a fleet serves none.
PATHS = {
    path: operations
    for path, operations in openapi_without_server("0.0.1")["paths"].items()
    if not path.endswith("_lora_adapter") and not path.startswith(("/v1/files", "/v1/batches"))
}
# The front answers these GET routes itself.
FRONT_ROUTES = {
    "/",
    "/ping",
    "/info",
    "/metrics",
    "/health",
    "/health/live",
    "/health/ready",
    "/health/progress",
    "/v1/models",
    "/v1/models/{model_name}",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def listeners(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listeners]:
    async with listening(tmp_path_factory.mktemp("sockets")) as built:
        yield built


@pytest_asyncio.fixture(loop_scope="module")
async def fleet(listeners: Listeners) -> AsyncIterator[RunningFleet]:
    async with running_fleet(listeners) as built:
        yield built


async def post(fleet: RunningFleet, path: str, body: object, **headers: str) -> httpx.Response:
    async with fleet.client as client:
        return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        pytest.param("/generate", {"inputs": "x", "model": "b"}, "b", id="tgi"),
        pytest.param("/v1/chat/completions", {"messages": [], "model": "b"}, "b", id="openai"),
        pytest.param("/v1/messages", {"model": "a"}, "a", id="anthropic"),
        pytest.param("/tokenize?model=b", {"inputs": "x"}, "b", id="query-string"),
        pytest.param("/generate", {"inputs": "x"}, "a", id="default"),
        pytest.param("/generate", {"inputs": "x", "model": "tgi"}, "a", id="placeholder"),
    ],
)
async def test_a_request_goes_to_the_model_that_it_names(
    fleet: RunningFleet, path: str, body: dict[str, object], model: str
) -> None:
    answer = await post(fleet, path, body)
    assert answer.json()["from"] == model
    assert answer.status_code == 200


async def test_bytes_and_headers_pass_unchanged(fleet: RunningFleet) -> None:
    content = b'{ "model":"b",\n "inputs": "\xc3\xa9\\u00e9"  }'
    async with fleet.client as client:
        answer = await client.post(
            "/generate?x=%20y",
            content=content,
            headers={
                "content-type": "application/json",
                "authorization": "Bearer k",
                "x-request-id": "mine",
                "x-own": "1",
                "origin": "http://page",
            },
        )
    (seen,) = fleet.upstreams.seen
    assert seen.body == content
    assert seen.query == "x=%20y"
    assert seen.header("authorization") == ["Bearer k"]
    assert seen.header("x-own") == ["1"]
    assert seen.header("x-request-id") == ["mine"]
    assert seen.header("content-length") == [str(len(content))]
    assert seen.header("origin") == []
    assert answer.headers["x-inference-time"] == "7"
    assert answer.headers.get_list("x-request-id") == ["mine"]
    assert answer.headers.get_list("access-control-allow-origin") == ["*"]
    assert len(answer.headers.get_list("date")) == 1


async def test_a_stream_passes_as_it_comes(fleet: RunningFleet) -> None:
    async with (
        fleet.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x", "model": "b"}) as stream,
    ):
        pieces = stream.aiter_text()
        assert await anext(pieces) == 'data: {"number":0}\n\n'
        assert fleet.manager.entry("b").num_users == 1
        fleet.upstreams.go_on.set()
        rest = "".join([piece async for piece in pieces])
    assert rest == 'data: {"number":1}\n\ndata: {"number":2}\n\n'
    assert fleet.manager.entry("b").num_users == 0


async def test_a_stream_passes_bare_to_a_client_of_http_1_0(fleet: RunningFleet) -> None:
    fleet.upstreams.go_on.set()
    body = b'{"inputs": "x", "model": "b"}'
    head = b"POST /generate_stream HTTP/1.0\r\ncontent-type: application/json\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(fleet.url).port)
    writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
    answer_head, _, answer = (await asyncio.wait_for(reader.read(), 30)).partition(b"\r\n\r\n")
    writer.close()

    assert b"transfer-encoding" not in answer_head
    assert answer == b"".join(b'data: {"number":%d}\n\n' % number for number in range(3))


async def test_a_client_that_leaves_ends_the_servers_work(fleet: RunningFleet) -> None:
    async with (
        fleet.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x"}) as stream,
    ):
        await anext(stream.aiter_text())
    await asyncio.wait_for(fleet.upstreams.left.wait(), 30)
    await fleet.until_unused("a")


async def test_a_client_that_does_not_read_slows_its_server_down(fleet: RunningFleet) -> None:
    async with (
        fleet.client as client,
        client.stream("POST", "/v1/completions", json={"model": "a"}) as stream,
    ):
        pieces = stream.aiter_raw()
        await anext(pieces)
        sent = 0
        while sent != fleet.upstreams.num_sent:
            sent = fleet.upstreams.num_sent
            await asyncio.sleep(0.05)
        assert sent < 8 << 20


@pytest.mark.parametrize(
    ("path", "events"),
    [
        pytest.param("/generate_stream", "data: {}\n\n", id="tgi"),
        pytest.param("/", "data: {}\n\n", id="tgi-either"),
        pytest.param("/v1/chat/completions", "data: {}\n\ndata: [DONE]\n\n", id="openai"),
        pytest.param("/v1/responses", "event: error\ndata: {}\n\n", id="responses"),
        pytest.param("/v1/messages", "event: error\ndata: {}\n\n", id="anthropic"),
    ],
)
async def test_a_server_that_dies_ends_its_streams_with_an_error(
    fleet: RunningFleet, path: str, events: str
) -> None:
    body = {"inputs": "x", "model": "b", "stream": True}
    async with (
        fleet.client as client,
        client.stream("POST", path, json=body) as stream,
    ):
        pieces = stream.aiter_text()
        await anext(pieces)
        await fleet.kill("b")
        rest = "".join([piece async for piece in pieces])
    before, after = events.split("{}")
    assert rest.startswith(before)
    error = json.loads(rest.removeprefix(before).removesuffix(after))
    assert "the model is loaded anew" in json.dumps(error["error"])


async def test_the_next_request_loads_a_dead_model_anew(fleet: RunningFleet) -> None:
    assert (await post(fleet, "/generate", {"model": "b"})).status_code == 200
    await fleet.kill("b")
    assert (await post(fleet, "/generate", {"model": "b"})).status_code == 200
    assert fleet.servers.started == ["b", "b"]


async def test_a_server_that_is_found_dead_is_started_anew_for_the_same_request(
    fleet: RunningFleet,
) -> None:
    assert (await post(fleet, "/generate", {"model": "b"})).status_code == 200
    socket = fleet.servers.sockets["b"]
    living = socket.rename(socket.with_suffix(".hidden"))
    fleet.servers.may_start.clear()
    asking = asyncio.create_task(post(fleet, "/generate", {"model": "b"}))
    while len(fleet.servers.started) < 2:
        await asyncio.sleep(0.001)
    living.rename(socket)
    fleet.servers.may_start.set()
    assert (await asking).status_code == 200
    assert fleet.metrics.unloads.value("died") == 1


async def test_a_server_that_does_not_answer_is_503(fleet: RunningFleet, tmp_path: Path) -> None:
    fleet.servers.sockets["b"] = tmp_path / "nobody"
    answer = await post(fleet, "/generate", {"model": "b"})
    assert answer.status_code == 503
    assert answer.json()["error_type"] == "model_server_gone"
    assert answer.headers["retry-after"] == "1"


async def test_a_name_that_is_not_served_is_404_in_the_dialect_of_its_path(
    fleet: RunningFleet,
) -> None:
    openai = await post(fleet, "/v1/chat/completions", {"model": "zzz", "messages": []})
    assert openai.status_code == 404
    assert openai.json()["error"]["code"] == "model_not_found"
    assert openai.json()["error"]["param"] == "model"
    assert "'zzz'" in openai.json()["error"]["message"]
    tgi = await post(fleet, "/generate", {"model": "zzz", "inputs": ""})
    assert tgi.json()["error_type"] == "model_not_found"
    assert fleet.servers.started == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no-json"),
        pytest.param(b"[]", 422, id="no-object"),
        pytest.param(b'{"model": 7}', 422, id="number"),
        pytest.param(b'{"inputs": "' + b"x" * 100_000 + b'"}', 413, id="too-large"),
    ],
)
async def test_a_broken_body_loads_nothing(fleet: RunningFleet, body: bytes, status: int) -> None:
    async with fleet.client as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/generate", content=body, headers=headers)
    assert answer.status_code == status
    assert fleet.servers.started == []


async def test_what_is_no_route_loads_nothing(fleet: RunningFleet) -> None:
    async with fleet.client as client:
        assert (await client.get("/wp-login.php")).status_code == 404
        wrong = await client.delete("/generate")
        assert wrong.status_code == 405
        assert wrong.headers["allow"] == "POST"
        assert (await client.put("/health")).headers["allow"] == "GET, HEAD"
    assert fleet.servers.started == []


async def test_who_waits_too_long_gets_503_and_the_load_goes_on(listeners: Listeners) -> None:
    async with running_fleet(listeners, load_timeout_s=1.0, starts=False) as fleet:
        answer = await post(fleet, "/v1/completions", {"model": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_loading"
        assert answer.headers["retry-after"] == "5"
        fleet.servers.may_start.set()
        assert (await post(fleet, "/generate", {"model": "a"})).status_code == 200
        assert fleet.servers.started == ["a"]


async def test_a_failed_load_is_503_with_its_reason(listeners: Listeners) -> None:
    async with running_fleet(listeners) as fleet:
        fleet.servers.refusals["b"] = "has no weights"
        for _ in range(2):
            answer = await post(fleet, "/generate", {"model": "b"})
            assert answer.status_code == 503
            assert "has no weights" in answer.json()["error"]
            assert answer.json()["error_type"] == "model_load_failed"
            assert 0 < int(answer.headers["retry-after"]) <= 30
        assert fleet.servers.started == ["b"]
        async with fleet.client as client:
            cards = (await client.get("/v1/models")).json()["data"]
        assert {card["id"]: card["state"] for card in cards} == {"a": "absent", "b": "failed"}
        assert cards[1]["failure"] == "has no weights"


async def test_a_client_that_leaves_while_it_waits_holds_no_place(listeners: Listeners) -> None:
    async with running_fleet(listeners, starts=False) as fleet:
        asking = asyncio.create_task(post(fleet, "/generate", {"model": "a"}))
        while fleet.manager.entry("a").state is not ModelState.LOADING:
            await asyncio.sleep(0.001)
        asking.cancel()
        while fleet.metrics.waiting.value():
            await asyncio.sleep(0.001)
        fleet.servers.may_start.set()
        assert (await post(fleet, "/generate", {"model": "b"})).json()["from"] == "b"
        assert fleet.upstreams.seen[0].model == "b"


async def test_keys_are_asked_for_before_anything_is_loaded(listeners: Listeners) -> None:
    async with running_fleet(listeners, keys=("secret",)) as fleet:
        assert (await post(fleet, "/generate", {"model": "a"})).status_code == 401
        assert fleet.servers.started == []
        answer = await post(fleet, "/generate", {"model": "a"}, authorization="Bearer secret")
        assert answer.status_code == 200
        async with fleet.client as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 401


async def test_without_a_name_any_model_means_the_one_in_use(
    listeners: Listeners, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "a"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    names = AnyModel(tmp_path / "models", None)
    async with running_fleet(listeners, names=names) as fleet:
        refused = await post(fleet, "/generate", {"inputs": "x"})
        assert refused.status_code == 400
        assert "`model` is required" in refused.json()["error"]
        assert (await post(fleet, "/generate", {"model": "a"})).status_code == 200
        assert (await post(fleet, "/generate", {"inputs": "x"})).json()["from"] == "a"


async def test_a_stored_response_is_found_at_the_server_that_has_it(listeners: Listeners) -> None:
    async with running_fleet(listeners, max_loaded=2) as fleet:
        fleet.upstreams.stored["resp_1"] = "b"
        async with fleet.client as client:
            assert (await client.get("/v1/responses/resp_1")).status_code == 404
            for name in ("a", "b"):
                await client.post("/generate", json={"model": name})
            assert (await client.get("/v1/responses/resp_1")).json() == {"from": "b"}
            assert (await client.get("/v1/responses/resp_2")).status_code == 404


async def test_metrics_are_on_one_page_by_model(listeners: Listeners) -> None:
    async with running_fleet(listeners, max_loaded=2) as fleet, fleet.client as client:
        for name in ("a", "b"):
            await client.post("/generate", json={"model": name})
        page = (await client.get("/metrics")).text
    assert page.count("# TYPE t_total counter") == 1
    assert 't_total{model="a",err="x"} 1.0\nt_total{model="b",err="x"} 1.0\n' in page
    assert 'tandem_fleet_requests_total{model="a"} 1.0' in page
    assert 'tandem_fleet_model_state{model="b",state="ready"} 1.0' in page


async def test_probes_load_nothing(fleet: RunningFleet) -> None:
    async with fleet.client as client:
        for path in ("/", "/health", "/health/live", "/health/progress", "/ping", "/info"):
            assert (await client.get(path)).status_code == 200
            assert (await client.head(path)).status_code == 200
        assert (await client.get("/v1/models/a")).json()["state"] == "absent"
        assert (await client.get("/v1/models/zzz")).status_code == 404
        assert (await client.get("/info")).json()["model_id"] == "a"
        assert (await client.get("/api-doc/openapi.json")).status_code == 404
    assert fleet.servers.started == []
    await post(fleet, "/generate", {"model": "a"})
    async with fleet.client as client:
        assert (await client.get("/v1/models/a")).json()["state"] == "ready"
        cards = (await client.get("/v1/models")).json()["data"]
        assert [card.get("max_model_len") for card in cards] == [64, None]
        assert (await client.get("/api-doc/openapi.json")).json()["from"] == "a"


@pytest.mark.parametrize("path", PATHS)
async def test_every_route_of_the_router_is_passed_on_or_answered_by_the_front(path: str) -> None:
    methods = {method.upper() for method in PATHS[path]}
    if path in FRONT_ROUTES:
        methods -= {"GET"}
    concrete = path.replace("{response_id}", "resp_1")
    assert methods_of(concrete) - {"HEAD"} == methods


@pytest.mark.parametrize(
    ("path", "methods", "is_of_loaded"),
    [
        ("/generate", {"POST"}, False),
        ("/v1/responses/resp_1", {"GET", "HEAD", "DELETE"}, True),
        ("/v1/responses/input_tokens", {"POST"}, False),
        ("/api-doc/openapi.json", {"GET", "HEAD"}, True),
        ("/wp-login.php", set(), False),
    ],
)
async def test_a_path_says_which_model_may_answer(
    path: str, methods: set[str], is_of_loaded: bool
) -> None:
    assert (methods_of(path), is_of_loaded_model(path)) == (methods, is_of_loaded)
