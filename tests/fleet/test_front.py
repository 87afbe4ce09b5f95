"""The front over HTTP: names, passing in both directions, leaving, dying, waiting."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from fleet.model_entry import State
from fleet.model_table import RosterRules
from fleet.names import AnyModel
from tests.fleet.house import House, fleet_house


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with fleet_house(tmp_path) as built:
        yield built


async def post(house: House, path: str, body: object, **headers: str) -> httpx.Response:
    async with house.client as client:
        return await client.post(path, json=body, headers=headers)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        pytest.param("/generate", {"inputs": "x", "model": "b"}, "b", id="tgi"),
        pytest.param("/v1/chat/completions", {"messages": [], "model": "b"}, "b", id="openai"),
        pytest.param("/v1/messages", {"model": "a"}, "a", id="anthropic"),
        pytest.param("/v2/models/b/infer", {"inputs": []}, "b", id="kserve"),
        pytest.param("/v2/models/b/versions/3/infer", {"inputs": []}, "b", id="kserve-version"),
        pytest.param("/tokenize?model=b", {"inputs": "x"}, "b", id="query-string"),
        pytest.param("/generate", {"inputs": "x"}, "a", id="default"),
        pytest.param("/generate", {"inputs": "x", "model": "tgi"}, "a", id="placeholder"),
    ],
)
async def test_a_request_goes_to_the_model_that_it_names(
    house: House, path: str, body: dict[str, object], model: str
) -> None:
    answer = await post(house, path, body)
    assert answer.json()["from"] == model
    assert answer.status_code == 200


async def test_bytes_and_headers_pass_unchanged(house: House) -> None:
    content = b'{ "model":"b",\n "inputs": "\xc3\xa9\\u00e9"  }'
    async with house.client as client:
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
    (seen,) = house.upstreams.seen
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


async def test_a_stream_passes_as_it_comes(house: House) -> None:
    async with (
        house.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x", "model": "b"}) as stream,
    ):
        pieces = stream.aiter_text()
        assert await anext(pieces) == 'data: {"number":0}\n\n'
        assert house.keeper.num_users("b") == 1
        house.upstreams.go_on.set()
        rest = "".join([piece async for piece in pieces])
    assert rest == 'data: {"number":1}\n\ndata: {"number":2}\n\n'
    assert house.keeper.num_users("b") == 0


async def test_a_client_that_leaves_ends_the_servers_work(house: House) -> None:
    async with (
        house.client as client,
        client.stream("POST", "/generate_stream", json={"inputs": "x"}) as stream,
    ):
        await anext(stream.aiter_text())
    await asyncio.wait_for(house.upstreams.left.wait(), 30)
    async with asyncio.timeout(30):
        while house.keeper.num_users("a"):
            await asyncio.sleep(0.01)


async def test_a_client_that_does_not_read_slows_its_server_down(house: House) -> None:
    async with (
        house.client as client,
        client.stream("POST", "/v1/completions", json={"model": "a"}) as stream,
    ):
        pieces = stream.aiter_raw()
        await anext(pieces)
        sent = 0
        while sent != house.upstreams.num_sent:
            sent = house.upstreams.num_sent
            await asyncio.sleep(0.2)
        assert sent < 8 << 20


async def test_a_server_that_dies_ends_its_streams_with_an_error(house: House) -> None:
    body = {"inputs": "x", "model": "b"}
    async with (
        house.client as client,
        client.stream("POST", "/generate_stream", json=body) as stream,
    ):
        pieces = stream.aiter_text()
        await anext(pieces)
        await house.kill("b")
        rest = "".join([piece async for piece in pieces])
    told = json.loads(rest.removeprefix("data:"))
    assert told["error_type"] == "model_server_gone"
    assert house.metrics.cut.value() == 1


async def test_the_next_request_loads_a_dead_model_anew(house: House) -> None:
    assert (await post(house, "/generate", {"model": "b"})).status_code == 200
    house.servers.by_name["b"].die("it was ended by SIGKILL")
    await asyncio.sleep(0.05)
    assert (await post(house, "/generate", {"model": "b"})).status_code == 200
    assert house.servers.started == ["b", "b"]


async def test_a_server_that_is_found_dead_is_started_anew_for_the_same_request(
    house: House,
) -> None:
    assert (await post(house, "/generate", {"model": "b"})).status_code == 200
    socket = house.servers.sockets["b"]
    living = socket.rename(socket.with_suffix(".hidden"))
    house.servers.may_start.clear()
    asking = asyncio.create_task(post(house, "/generate", {"model": "b"}))
    while len(house.servers.started) < 2:
        await asyncio.sleep(0.001)
    living.rename(socket)
    house.servers.may_start.set()
    assert (await asking).status_code == 200
    assert house.metrics.unloads.value("died") == 1


async def test_a_server_that_takes_nothing_more_is_started_anew_for_the_same_request(
    house: House,
) -> None:
    async with house.client as client:
        await client.post("/generate", json={"inputs": "x", "model": "a"})
        house.upstreams.is_leaving = "a"
        house.servers.may_start.clear()
        asking = asyncio.create_task(client.post("/generate", json={"inputs": "y", "model": "a"}))
        while house.servers.started != ["a", "a"]:
            await asyncio.sleep(0.01)
        assert house.servers.by_name["a"].is_stopped
        house.upstreams.is_leaving = None
        house.servers.may_start.set()
        assert (await asking).status_code == 200


async def test_a_server_that_never_takes_anything_is_told_as_it_says(house: House) -> None:
    house.upstreams.is_leaving = "a"
    async with house.client as client:
        answer = await client.post("/generate", json={"inputs": "x", "model": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (503, "draining")
    assert "x-tandem-state" not in answer.headers


async def test_a_server_that_does_not_answer_is_told_as_503(house: House) -> None:
    house.https["b"].stop_at_once()
    await house.https["b"].stop()
    answer = await post(house, "/generate", {"model": "b"})
    assert answer.status_code == 503
    assert answer.json()["error_type"] == "model_server_gone"
    assert answer.headers["retry-after"] == "1"


async def test_a_name_that_is_not_served_is_404_in_the_dialect_of_its_path(house: House) -> None:
    openai = await post(house, "/v1/chat/completions", {"model": "zzz", "messages": []})
    assert openai.status_code == 404
    assert openai.json()["error"]["code"] == "model_not_found"
    assert openai.json()["error"]["param"] == "model"
    assert "'zzz'" in openai.json()["error"]["message"]
    tgi = await post(house, "/generate", {"model": "zzz", "inputs": ""})
    assert tgi.json()["error_type"] == "model_not_found"
    assert house.servers.started == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"{", 400, id="no-json"),
        pytest.param(b"[]", 422, id="no-object"),
        pytest.param(b'{"model": 7}', 422, id="number"),
        pytest.param(b'{"inputs": "' + b"x" * 100_000 + b'"}', 413, id="too-large"),
    ],
)
async def test_a_broken_body_loads_nothing(house: House, body: bytes, status: int) -> None:
    async with house.client as client:
        headers = {"content-type": "application/json"}
        answer = await client.post("/generate", content=body, headers=headers)
    assert answer.status_code == status
    assert house.servers.started == []


async def test_what_is_no_route_loads_nothing(house: House) -> None:
    async with house.client as client:
        assert (await client.get("/wp-login.php")).status_code == 404
        wrong = await client.delete("/generate")
        assert wrong.status_code == 405
        assert wrong.headers["allow"] == "POST"
        assert (await client.put("/health")).headers["allow"] == "GET, HEAD"
    assert house.servers.started == []


async def test_who_waits_too_long_gets_503_and_the_load_goes_on(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, load_timeout_s=0.1, starts=False) as house:
        answer = await post(house, "/v1/completions", {"model": "a"})
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "model_loading"
        assert answer.headers["retry-after"] == "5"
        house.servers.may_start.set()
        assert (await post(house, "/generate", {"model": "a"})).status_code == 200
        assert house.servers.started == ["a"]


async def test_a_failed_load_is_503_with_its_reason(tmp_path: Path) -> None:
    async with fleet_house(tmp_path) as house:
        house.servers.refusals["b"] = "has no weights"
        for _ in range(2):
            answer = await post(house, "/generate", {"model": "b"})
            assert answer.status_code == 503
            assert "has no weights" in answer.json()["error"]
            assert answer.json()["error_type"] == "model_load_failed"
            assert 0 < int(answer.headers["retry-after"]) <= 30
        assert house.servers.started == ["b"]
        async with house.client as client:
            cards = (await client.get("/v1/models")).json()["data"]
        assert {card["id"]: card["state"] for card in cards} == {"a": "absent", "b": "failed"}
        assert cards[1]["failure"] == "has no weights"


async def test_a_client_that_leaves_while_it_waits_holds_no_place(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, starts=False) as house:
        asking = asyncio.create_task(post(house, "/generate", {"model": "a"}))
        while house.keeper.states().get("a") is not State.LOADING:
            await asyncio.sleep(0.01)
        asking.cancel()
        while house.metrics.waiting.value():
            await asyncio.sleep(0.01)
        house.servers.may_start.set()
        assert (await post(house, "/generate", {"model": "b"})).json()["from"] == "b"
        assert house.upstreams.seen[0].model == "b"


async def test_keys_are_asked_for_before_anything_is_loaded(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, keys=("secret",)) as house:
        assert (await post(house, "/generate", {"model": "a"})).status_code == 401
        assert house.servers.started == []
        answer = await post(house, "/generate", {"model": "a"}, authorization="Bearer secret")
        assert answer.status_code == 200
        async with house.client as client:
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/v1/models")).status_code == 401


async def test_without_a_name_any_model_means_the_one_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "a"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    names = AnyModel(tmp_path / "models", None, 1.0, lambda: 0.0)
    async with fleet_house(tmp_path, names=names) as house:
        refused = await post(house, "/generate", {"inputs": "x"})
        assert refused.status_code == 400
        assert "`model` is required" in refused.json()["error"]
        assert (await post(house, "/generate", {"model": "a"})).status_code == 200
        assert (await post(house, "/generate", {"inputs": "x"})).json()["from"] == "a"


async def test_a_stored_response_is_found_at_the_server_that_has_it(tmp_path: Path) -> None:
    async with fleet_house(tmp_path, rules=RosterRules(max_loaded=2)) as house:
        house.upstreams.stored["resp_1"] = "b"
        async with house.client as client:
            assert (await client.get("/v1/responses/resp_1")).status_code == 404
            for name in ("a", "b"):
                await client.post("/generate", json={"model": name})
            assert (await client.get("/v1/responses/resp_1")).json() == {"from": "b"}
            assert (await client.get("/v1/responses/resp_2")).status_code == 404


async def test_metrics_are_on_one_page_by_model(tmp_path: Path) -> None:
    rules = RosterRules(max_loaded=2)
    async with fleet_house(tmp_path, rules=rules) as house, house.client as client:
        for name in ("a", "b"):
            await client.post("/generate", json={"model": name})
        page = (await client.get("/metrics")).text
    assert page.count("# TYPE t_total counter") == 1
    assert 't_total{model="a",err="x"} 1.0\nt_total{model="b",err="x"} 1.0\n' in page
    assert 'tandem_fleet_requests_total{model="a"} 1.0' in page
    assert 'tandem_fleet_model_state{model="b",state="ready"} 1.0' in page


async def test_probes_load_nothing(house: House) -> None:
    async with house.client as client:
        for path in ("/", "/health", "/health/live", "/health/progress", "/ping", "/info", "/v2"):
            assert (await client.get(path)).status_code == 200
            assert (await client.head(path)).status_code == 200
        assert (await client.get("/v2/models/a/ready")).status_code == 503
        assert (await client.get("/v1/models/a")).json()["state"] == "absent"
        assert (await client.get("/v1/models/zzz")).status_code == 404
        assert (await client.get("/info")).json()["model_id"] == "a"
        assert "paths" in (await client.get("/api-doc/openapi.json")).json()
    assert house.servers.started == []
    await post(house, "/generate", {"model": "a"})
    async with house.client as client:
        assert (await client.get("/v2/models/a/ready")).json()["ready"] is True
        cards = (await client.get("/v1/models")).json()["data"]
        assert [card.get("max_model_len") for card in cards] == [64, None]
        assert (await client.get("/v2/models/a")).json()["from"] == "a"
        assert (await client.head("/v2/models/a")).status_code == 200
