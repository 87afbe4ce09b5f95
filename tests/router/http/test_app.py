"""The application as a whole: errors of every route, ids, logs, metrics; keys and their shares."""

import asyncio
import json
import logging
import random
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.engine.stream import Stream
from router.http.server.auth import KeyRing
from router.http.tgi import Parameters
from router.request.request import ApiKey, GenerateRequest
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request, record
from tests.router.rig import PATIENT, methods, settled, until

JSON = {"content-type": "application/json"}
ROUTES = ["/", "/generate", "/generate_stream", "/tokenize", "/v1/completions"]
ROUTES += ["/v1/chat/completions", "/chat_tokenize", "/invocations", "/vertex"]
CHOSEN = "/v1/endpoints/7/deployedModels/8"
PATHS = {CHOSEN: "/health", CHOSEN + ":predict": "/vertex"}


def assert_error(path: str, answer: Any, status: int, error_type: str) -> str:
    """The error's message; both shapes are checked field by field."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()
    if path.startswith("/v1"):
        assert error.keys() == {"error"}
        error = error["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return str(error["message"])
    assert error.keys() == {"error", "error_type"}
    assert error["error_type"] == error_type
    return str(error["error"])


async def test_malformed_bodies_are_answered_in_json() -> None:
    async with housing(FakeShard(), max_body_len=5000) as house, house.client as client:
        for path in ROUTES:
            for body, headers, status, error_type, words in (
                (b"{", JSON, 400, "validation", "line 1 column"),
                (b'{"inputs": NaN}', JSON, 400, "validation", "line 1 column"),
                (b'{"inputs": "\xff"}', JSON, 400, "validation", "byte 12"),
                (b"", JSON, 400, "validation", "line 1 column"),
                (b'{"x":' * 900, JSON, 400, "validation", "line 1 column"),
                (b"x" * 5001, JSON, 413, "payload_too_large", "5001 bytes; at most 5000"),
                (
                    b"{}",
                    {"content-type": "text/plain"},
                    415,
                    "unsupported_media_type",
                    "text/plain",
                ),
                (b"{}", {}, 415, "unsupported_media_type", "none"),
                (
                    b"{}",
                    JSON | {"content-encoding": "gzip"},
                    415,
                    "unsupported_media_type",
                    "`gzip`",
                ),
                (
                    b"{}",
                    JSON | {"content-encoding": "aes, BR"},
                    415,
                    "unsupported_media_type",
                    "BR",
                ),
                (b"{", JSON | {"content-encoding": "utf-8"}, 400, "validation", "line 1 column"),
            ):
                answer = await client.post(path, content=body, headers=headers)
                assert words in assert_error(path, answer, status, error_type)


async def test_deep_nesting_is_refused_wherever_it_is() -> None:
    deep = b'{"inputs": "a", "parameters": {"grammar": {"type": "json", "value": '
    deep += b'{"a":' * 1000 + b"1" + b"}" * 1000 + b"}}}"
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.post("/generate", content=deep, headers=JSON)

    assert "`parameters` is nested more than 64" in assert_error("/", answer, 400, "validation")


async def test_a_body_of_unknown_length_is_measured_as_it_comes() -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b"x" * 100

    async with housing(FakeShard(), max_body_len=5000) as house, house.client as client:
        answer = await client.post("/generate", content=pieces(), headers=JSON)

    assert "10000 bytes; at most 5000" in assert_error("/", answer, 413, "payload_too_large")


async def test_all_kinds_of_json_are_read() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for media_type in ("application/json; charset=utf-8", "application/ld+json"):
            body = b'{"inputs": "a", "parameters": {"max_new_tokens": 1}}'
            answer = await client.post(
                "/generate", content=body, headers={"content-type": media_type}
            )
            assert answer.status_code == 200


async def test_an_unknown_route_is_a_404_in_the_path_s_dialect() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path in ("/nothing", "/v1/nothing", "/v1", "/v2/models"):
            for method in ("GET", "POST"):
                answer = await client.request(method, path)
                assert path in assert_error(path, answer, 404, "not_found")


WRONG_METHODS: list[tuple[Any, ...]] = [
    ("/", "GET, HEAD, POST"),
    ("/generate", "POST"),
    ("/info", "GET, HEAD"),
    ("/v1/completions", "POST"),
    ("/v1/models", "GET, HEAD"),
]


async def test_a_wrong_method_is_a_405_that_names_the_right_ones() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path, allowed in WRONG_METHODS:
            answer = await client.delete(path)
            assert answer.headers["allow"] == allowed
            assert allowed in assert_error(path, answer, 405, "method_not_allowed")


SENT_IDS: list[tuple[Any, ...]] = [
    ("abc-123", True),
    ("a", True),
    ("trace:1/2=3", True),
    ("x" * 128, True),
    ("x" * 129, False),
    ("", False),
    ("has space", False),
    ("-option", False),
    ('quote"', False),
    ("umlaut\u00fc", False),
]


async def test_a_request_id_is_taken_if_it_is_sane_else_made() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for given, is_kept in SENT_IDS:
            headers = [(b"x-request-id", given.encode("latin-1"))]
            answer = await client.get("/health", headers=headers)
            returned = answer.headers["x-request-id"]
            assert (returned == given) is is_kept
            assert len(returned) >= 1


async def test_every_answer_has_an_id_of_its_own() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answers = [
            await client.get("/nothing"),
            await client.get("/v1/models"),
            await client.post("/generate", content=b"{", headers=JSON),
            await client.post("/generate_stream", json={"inputs": ""}),
            await client.get("/metrics"),
        ]

    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


async def test_a_request_has_one_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    body = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
    async with housing(FakeShard()) as house, house.client as client:
        await client.post("/generate_stream", json=body, headers={"x-request-id": "mine"})

    (record,) = [each for each in caplog.records if each.name == "router.http.server.access"]
    fields = vars(record)
    assert record.getMessage().startswith("POST /generate_stream 200 total_ms=")
    assert (fields["request_id"], fields["status"]) == ("mine", 200)
    assert (fields["num_prompt_tokens"], fields["num_generated_tokens"]) == (5, 3)
    assert fields["queue_ms"] + fields["inference_ms"] <= fields["total_ms"] + 1


async def test_the_log_has_the_error_inside_a_stream(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    async with housing(FakeShard()) as house, house.client as client:
        await client.post("/generate_stream", json={"inputs": ""})

    (record,) = [each for each in caplog.records if each.name == "router.http.server.access"]
    assert vars(record)["error_type"] == "validation"


async def test_a_path_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    async with housing(FakeShard()) as house, house.client as client:
        await client.get("/a%0aINFO forged")

    (record,) = [each for each in caplog.records if each.name == "router.http.server.access"]
    assert "\n" not in record.getMessage()


async def test_the_request_id_goes_down_with_the_request() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        submit_all = house.rig.batcher.submit_all
        seen: list[str] = []

        def submit_seen(requests: Sequence[GenerateRequest]) -> list[Stream]:
            seen.extend(request.trace_id for request in requests)
            return submit_all(requests)

        house.rig.batcher.submit_all = submit_seen  # type: ignore[method-assign]
        body = {"inputs": "a", "parameters": {"max_new_tokens": 1}}
        await client.post("/generate", json=body, headers={"x-request-id": "mine"})

    assert seen == ["mine"]


async def test_requests_are_counted_by_their_ends() -> None:
    async with housing(FakeShard(), max_concurrent_requests=2) as house, house.client as client:
        draws = {"best_of": 2, "do_sample": True}
        sampled = {"inputs": "a", "parameters": {**draws, "max_new_tokens": 1}}
        await client.post("/generate", json=sampled)
        await client.post("/generate", json={"inputs": ""})
        await client.post("/generate_stream", json={"inputs": ""})
        await client.post("/generate", content=b"{", headers=JSON)
        await client.post("/v1/chat/completions", json={"messages": []})
        chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
        await client.post("/v1/chat/completions", json=chat)
        await client.post("/v1/completions", json={"prompt": ["a", "b", "c"], "max_tokens": 1})
        metrics = house.rig.metrics

    assert metrics.request_count.value() == 7
    assert metrics.request_success.value() == 2
    assert metrics.request_failure.value("validation") == 5
    assert metrics.request_duration.count() == 2
    assert metrics.validation_duration.count() == 5


async def test_health_is_empty_or_a_503() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path in ("/health", "/"):
            answer = await client.get(path)
            assert (answer.status_code, answer.content) == (200, b"")
            assert (await client.head(path)).status_code == 200

        await house.rig.batcher.drain(1.0)
        answer = await client.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"error": "unhealthy", "error_type": "healthcheck"}


async def test_info_has_tgi_s_fields_first() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        info = (await client.get("/info")).json()

    assert dict(list(info.items())[:14]) == {
        "model_id": "fake/model",
        "model_sha": None,
        "model_pipeline_tag": None,
        "max_concurrent_requests": 8,
        "max_best_of": 2,
        "max_stop_sequences": 4,
        "max_input_tokens": 120,
        "max_total_tokens": 160,
        "validation_workers": 2,
        "max_client_batch_size": 4,
        "router": "text-generation-router",
        "version": "0.0.1",
        "sha": None,
        "docker_label": None,
    }
    assert info["language_model_only"] is False


async def test_the_model_is_listed_once_and_found_by_an_alias() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        models = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/fake/model")
        alias = await client.get("/v1/models/model")
        none = await client.get("/v1/models/other")

    assert models["object"] == "list"
    assert [card["id"] for card in models["data"]] == ["fake/model"]
    assert one.json() == alias.json() == models["data"][0]
    assert one.json().items() >= {"object": "model", "owned_by": "fake/model"}.items()
    assert none.json()["error"]["code"] == "model_not_found"


async def test_metrics_are_prometheus_text() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get("/metrics")

    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "\ntgi_request_count 0.0\n" in answer.text


async def test_a_bug_is_a_500_in_json_and_a_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        house.rig.batcher.submit_all = None  # type: ignore[method-assign, assignment]
        answer = await client.post(
            "/generate", json={"inputs": "a"}, headers={"x-request-id": "mine"}
        )

    assert "mine" in assert_error("/", answer, 500, "internal_error")
    assert answer.headers["x-request-id"] == "mine"
    bugs = [record for record in caplog.records if record.exc_info]
    assert ["mine" in record.getMessage() for record in bugs] == [True]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = sorted(
    {*Parameters.model_fields, "messages", "prompt", "n", "logprobs", "top_logprobs", "max_tokens"}
    | {"echo", "logit_bias", "min_p", "min_tokens", "stop_token_ids", "tools", "response_format"}
    | {"stream", "stream_options", "model", "presence_penalty", "skip_special_tokens"}
)


# Each example starts a house, which takes as long as some thirty requests.
@settings(max_examples=5)
@given(
    bodies=st.lists(
        st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4), min_size=24, max_size=24
    )
)
def test_no_body_is_answered_with_a_5xx_or_without_json(bodies: list[dict[str, Any]]) -> None:
    async def ask_all() -> None:
        async with housing(FakeShard(script=saying("ok", 1))) as house, house.client as client:
            for index, fields in enumerate(bodies):
                path = ROUTES[(index + len(fields)) % len(ROUTES)]
                whole: dict[str, Any] = {
                    "inputs": "a",
                    "parameters": {"max_new_tokens": 2, **fields},
                    "prompt": "a",
                    "messages": [{"role": "user", "content": "a"}],
                    "max_tokens": 2,
                    **fields,
                }
                content = json.dumps(whole).encode()
                answer = await client.post(path, content=content, headers=JSON)
                assert answer.status_code in (200, 400, 404, 422, 429), answer.text
                if answer.headers["content-type"] == "application/json":
                    answer.json()

    asyncio.run(ask_all())


async def test_what_can_be_read_can_be_asked_for_without_its_body() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        for path in ("/info", "/metrics", "/v1/models", "/v1/models/model"):
            answer = await record(port, "HEAD", path)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            assert body == b""


async def test_a_chosen_path_is_served_in_the_dialect_of_the_route(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger="router.http.server.access")
    shard = FakeShard(script=saying("w", 5))
    async with housing(shard, aliases=PATHS) as house, house.client as client:
        health = await client.get(CHOSEN)
        good = await client.post(CHOSEN + ":predict", json={"instances": [{"inputs": "hello"}]})
        bad = await client.post(CHOSEN + ":predict", json={"instances": []})

    assert (health.status_code, health.content) == (200, b"")
    assert good.json() == {"predictions": ["w"]}
    assert (bad.status_code, bad.json()["error_type"]) == (422, "validation")
    assert caplog.records[0].getMessage().startswith(f"POST {CHOSEN}:predict ")


async def test_the_route_s_own_rules_hold_for_a_chosen_path() -> None:
    guarded = housing(FakeShard(), aliases=PATHS, api_keys=["secret"])
    async with guarded as house, house.client as client:
        assert (await client.get(CHOSEN)).status_code == 200
        answer = await client.post(CHOSEN + ":predict", json={"instances": []})

    assert answer.status_code == 401
    assert answer.json().keys() == {"error", "error_type"}


BODY = {"inputs": "hi", "parameters": {"max_new_tokens": 100}}


def slow_shard() -> FakeShard:
    shard = FakeShard()
    shard.faults.delay_s = 0.005
    return shard


def ring(**limits: Any) -> KeyRing:
    """The keys "hog" and "light", which are their names as well."""
    names = ("hog", "light")
    return KeyRing([ApiKey(name, sha256(name.encode()).digest(), **limits) for name in names])


async def ask(house: House, key: str, path: str = "/generate", body: Any = BODY) -> httpx.Response:
    async with house.client as client:
        return await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})


async def test_a_key_has_so_many_requests_at_once() -> None:
    async with housing(slow_shard(), api_keys=ring(max_concurrent_requests=1)) as house:
        first = asyncio.ensure_future(ask(house, "hog"))
        await until(lambda: house.rig.batcher.num_streams == 1)
        second = await ask(house, "hog")
        other = await ask(house, "light")
        assert (await first).status_code == 200
        third = await ask(house, "hog")
        assert house.rig.metrics.rejected.value("rate_limited") == 1

    assert (second.status_code, other.status_code, third.status_code) == (429, 200, 200)
    assert second.json() == {
        "error": "1 requests of this key are waiting or running; at most 1 may",
        "error_type": "rate_limited",
    }
    assert second.headers["retry-after"] == "1"


async def test_openais_clients_read_of_their_limit() -> None:
    async with housing(FakeShard(), api_keys=ring(requests_per_minute=1)) as house:
        body = {"prompt": "hi", "max_tokens": 2}
        assert (await ask(house, "hog", "/v1/completions", body)).status_code == 200
        answer = await ask(house, "hog", "/v1/completions", body)

    error = answer.json()["error"]
    assert (answer.status_code, error["type"]) == (429, "rate_limit_error")
    assert error["code"] == "rate_limit_exceeded"
    assert 55 <= int(answer.headers["retry-after"]) <= 60


async def test_tokens_are_those_that_were_computed() -> None:
    async with housing(FakeShard(), api_keys=ring(tokens_per_minute=101)) as house:
        answers = [(await ask(house, "hog")).status_code for _ in range(3)]
        other = (await ask(house, "light")).status_code

    # 102 tokens of the first one are more than there are.
    assert (answers, other) == ([200, 429, 429], 200)


async def test_a_key_that_fills_the_server_leaves_room_for_the_others() -> None:
    shard = slow_shard()
    async with housing(shard, max_concurrent_requests=4, api_keys=ring()) as house:
        hogs = [asyncio.ensure_future(ask(house, "hog")) for _ in range(4)]
        await until(lambda: house.rig.batcher.num_streams == 4)
        refused = await ask(house, "hog")
        answer = await ask(house, "light", body={**BODY, "parameters": {"max_new_tokens": 2}})
        still_running = [hog for hog in hogs if not hog.done()]
        statuses = [(await hog).status_code for hog in hogs]
        await settled(house.rig)

    assert (refused.status_code, answer.status_code) == (429, 200)
    assert len(still_running) == 4
    assert statuses == [200] * 4


PROMPT = "It was the best of times, it was"


async def num_cached(client: httpx.AsyncClient, key: str | None = None, **fields: Any) -> int:
    """Prompt tokens that were found in the cache."""
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    body = {"model": "fake/model", "prompt": PROMPT, "max_tokens": 2, **fields}
    answer = await client.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: int = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


async def test_one_key_learns_nothing_of_what_another_has_asked() -> None:
    async with housing(FakeShard(), api_keys=["one", "two"]) as house, house.client as client:
        assert await num_cached(client, "one") == 0
        assert await num_cached(client, "one") > 0
        assert await num_cached(client, "two") == 0
        assert await num_cached(client, "two") > 0


async def test_without_keys_all_share() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        assert await num_cached(client) == 0
        assert await num_cached(client) > 0


async def test_keys_share_where_the_operator_says_so() -> None:
    async with (
        housing(FakeShard(), api_keys=["one", "two"], shares_prefixes=True) as house,
        house.client as client,
    ):
        assert await num_cached(client, "one") == 0
        assert await num_cached(client, "two") > 0


@pytest.mark.parametrize("keys", [(), ("one", "two")], ids=["no keys", "two keys"])
async def test_a_salt_divides_the_cache_further(keys: tuple[str, ...]) -> None:
    key, *others = keys or (None,)
    async with housing(FakeShard(), api_keys=keys) as house, house.client as client:
        assert await num_cached(client, key) == 0
        assert await num_cached(client, key, cache_salt="a") == 0
        assert await num_cached(client, key, cache_salt="a") > 0
        assert await num_cached(client, key, cache_salt="b") == 0
        for other in others:
            assert await num_cached(client, other, cache_salt="a") == 0


async def test_an_empty_salt_is_refused() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        body = {"model": "fake/model", "prompt": PROMPT, "cache_salt": ""}
        answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert "`cache_salt` must be a text that is not empty" in answer.text


NUM_CLIENTS = 300
NUM_AT_ONCE = 50
LEFT_ROUTES = ("/generate", "/generate_stream", "/v1/completions", "/v1/chat/completions")


def body_of(path: str, index: int, num_tokens: int) -> dict[str, object]:
    prompt = f"client {index} " + "x" * (index % 90)
    if path.startswith("/generate"):
        return {"inputs": prompt, "parameters": {"max_new_tokens": num_tokens}}
    chosen = {"max_tokens": num_tokens, "stream": index % 3 > 0, "n": 1 + index % 2}
    if path.endswith("chat/completions"):
        return {"messages": [{"role": "user", "content": prompt[:90]}], **chosen}
    return {"prompt": prompt, **chosen}


async def visit(port: int, index: int, chance: random.Random) -> None:
    """Asks, reads or does not, and hangs up: mostly long before the end."""
    path = LEFT_ROUTES[index % len(LEFT_ROUTES)]
    body = json.dumps(body_of(path, index, chance.randint(1, 50))).encode()
    reader, writer = await open_request(port, "POST", path, body)
    stays_s = chance.choice((0.0, 0.005, 0.05, 0.3)) * chance.random()
    try:
        async with asyncio.timeout(stays_s):
            await reader.read()
    except TimeoutError:
        pass
    # Without a farewell, as a process that is killed.
    writer.transport.abort()


async def test_blocks_rows_and_slots_are_all_back_when_the_last_has_left() -> None:
    chance = random.Random(7)
    shard = FakeShard(num_blocks=4096)
    shard.faults.delay_s = 0.002
    few = asyncio.Semaphore(NUM_AT_ONCE)
    house_of_many = housing(shard, max_concurrent_requests=2 * NUM_AT_ONCE, timeouts=PATIENT)
    async with house_of_many as house, listening(house.app) as port:

        async def one(index: int) -> None:
            async with few:
                await visit(port, index, chance)

        await asyncio.gather(*(one(index) for index in range(NUM_CLIENTS)))
        await settled(house.rig)
        metrics = house.rig.metrics
        assert house.rig.batcher.num_streams == 0
        assert house.rig.scheduler.stats().num_blocks_used == 0
        assert shard.num_held == 0
        num_left = metrics.sequence_ends.value("cancelled")
        assert num_left > NUM_CLIENTS / 4
        assert metrics.cancel_to_free.count() == num_left
        assert "FilterBatch" not in methods(shard), "they left with the steps"
