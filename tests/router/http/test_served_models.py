"""A LoRA adapter is named where each API names its model, and is one among /v1/models."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from router.http.operations import Info, ModelCard, ModelList
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing
from tests.router.http.lmtp.talking import served, talking
from tests.router.rig import adapter_folder

HI = [{"role": "user", "content": "Hi"}]


@asynccontextmanager
async def with_adapters(folder: Path, *names: str) -> AsyncIterator[House]:
    async with housing(FakeShard(max_loras=4)) as house:
        for name in names:
            await house.rig.adapters.load(name, adapter_folder(folder, name))
        yield house


async def post(house: House, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    async with house.client as client:
        answer = await client.post(path, json=body)
    return answer.status_code, answer.json()


# The path, the body but for its model, and where the text of the answer stands.
APIS: list[tuple[str, dict[str, Any], Callable[[Any], str]]] = [
    (
        "/v1/chat/completions",
        {"messages": HI, "max_tokens": 4},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 4},
        lambda answer: answer["choices"][0]["text"],
    ),
    (
        "/v1/responses",
        {"input": "Hi", "max_output_tokens": 4},
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
    (
        "/v1/messages",
        {"messages": HI, "max_tokens": 4},
        lambda answer: answer["content"][0]["text"],
    ),
]
PATHS = [path for path, _, _ in APIS]


@pytest.mark.parametrize(("path", "body", "text_of"), APIS, ids=PATHS)
async def test_a_model_that_is_an_adapter_answers_with_it_under_its_name(
    path: str, body: dict[str, Any], text_of: Callable[[Any], str], tmp_path: Path
) -> None:
    async with with_adapters(tmp_path, "sql") as house:
        status, tuned = await post(house, path, {**body, "model": "sql"})
        _, plain = await post(house, path, {**body, "model": "model"})
    assert (status, tuned["model"], plain["model"]) == (200, "sql", "model")
    # A fake shard writes in capitals with an adapter.
    assert text_of(tuned).isupper()
    assert text_of(plain).islower()


@pytest.mark.parametrize(("path", "body", "text_of"), APIS, ids=PATHS)
async def test_an_unknown_model_is_a_404_that_names_the_adapters_too(
    path: str, body: dict[str, Any], text_of: Callable[[Any], str], tmp_path: Path
) -> None:
    async with with_adapters(tmp_path, "sql") as house:
        status, answer = await post(house, path, {**body, "model": "sq"})
    assert status == 404
    said = answer["error"]["message"]
    assert said == "The model `sq` does not exist; served: `fake/model`, `sql`"


async def test_tgi_names_it_in_its_parameters(tmp_path: Path) -> None:
    body = {"inputs": "Hi", "parameters": {"adapter_id": "sql", "max_new_tokens": 4}}
    async with with_adapters(tmp_path, "sql") as house:
        _, tuned = await post(house, "/generate", body)
        _, vertex = await post(house, "/vertex", {"instances": [body, {"inputs": "Hi"}]})
    assert tuned["generated_text"].isupper()
    assert [text[:4].isupper() for text in vertex["predictions"]] == [True, False]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((), '`adapter_id` must be absent: no adapter is loaded. Given: "mine"'),
        (
            ("sql", "chat"),
            '`adapter_id` must be one of the loaded adapters, `sql`, `chat`. Given: "mine"',
        ),
    ],
)
async def test_an_unknown_adapter_of_tgis_is_refused_with_those_that_there_are(
    names: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    async with with_adapters(tmp_path, *names) as house:
        body = {"inputs": "Hi", "parameters": {"adapter_id": "mine"}}
        status, answer = await post(house, "/generate", body)
    assert (status, answer["error_type"]) == (422, "validation")
    assert answer["error"] == f"Input validation error: {said}"


async def test_adapters_are_listed_behind_the_model_with_their_parent(tmp_path: Path) -> None:
    async with with_adapters(tmp_path, "sql") as house, house.client as client:
        cards = (await client.get("/v1/models")).json()
        card = (await client.get("/v1/models/sql")).json()
        info = (await client.get("/info")).json()
    ModelList.model_validate(cards)
    ModelCard.model_validate(card)
    Info.model_validate(info)
    assert [each["id"] for each in cards["data"]] == ["fake/model", "sql"]
    assert cards["data"][1] == card
    assert card["parent"] == "fake/model"
    assert "parent" not in cards["data"][0]
    assert info["max_loras"] == 4
    assert info["lora_adapters"] == [{"id": "sql", "rank": 8}]
    assert str(tmp_path) not in f"{cards}{info}"


async def test_an_adapter_that_is_unloaded_while_it_answers_gives_its_name_to_the_end(
    tmp_path: Path,
) -> None:
    async with with_adapters(tmp_path, "sql") as house, house.client as client:
        house.shard.faults.delay_s = 0.02
        body = {"model": "sql", "messages": HI, "max_tokens": 12, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await house.rig.adapters.unload("sql")
            rest = [line async for line in lines if line]
        status, _ = await post(house, "/v1/completions", {"model": "sql", "prompt": "Hi"})
    assert rest[-1] == "data: [DONE]"
    assert all('"model":"sql"' in line for line in rest[:-1])
    assert status == 404


async def test_lmtp_names_it_as_its_model(tmp_path: Path) -> None:
    shard = FakeShard(max_loras=1)
    async with served(shard) as (house, port), talking(port) as talk:
        await house.rig.adapters.load("sql", adapter_folder(tmp_path, "sql"))
        hello = await talk.hello()
        *_, (_, done) = await talk.ask("GENERATE", text="Hi", max_tokens=4, model="sql")
        hole = {"text": "Hi", "max_tokens": 2, "is_last": True}
        await talk.ask("BEAMS", width=2, holes=[hole], model="sql")
        await talk.ask("SCORE", text="Hi", scored=["a", "b"], model="sql")
        _, info = (await talk.ask("MODEL_INFO", model="sql"))[-1]
        unknown = await talk.error("GENERATE", text="Hi", model="other")
    assert hello["models"] == ["fake/model", "sql"]
    assert done["text"].isupper()
    assert info["model_info"]["model"] == "sql"
    assert unknown["error_type"] == "model_not_found"
    entered = [
        new for method, call in shard.calls if method == "Prefill" for new in call.batch.requests
    ]
    # The text, two beams at the least, and two values.
    assert len(entered) >= 5
    assert {new.adapter_id for new in entered} == {1}
