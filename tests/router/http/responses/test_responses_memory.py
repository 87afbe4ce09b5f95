"""/v1/responses/{id}: read again, gone on from, listed, forgotten."""

from typing import Any

import pytest

from tests.byte_tokenizer import NUM_SPECIAL
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing

PATH = "/v1/responses"
PROMPT = "user: hi\n"


def saying_after_hi(text: str) -> FakeShard:
    return FakeShard(script=saying(text, len(PROMPT)))


async def call(
    house: House, method: str, path: str, body: Any = None, *, key: str | None = None
) -> tuple[int, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with house.client as client:
        answer = await client.request(method, f"{PATH}{path}", json=body, headers=headers)
    return answer.status_code, answer.json()


async def post(house: House, key: str | None = None, **fields: Any) -> Any:
    body = {"input": "hi", **fields}
    status, answer = await call(house, "POST", "", body, key=key)
    assert status == 200, answer
    return answer


def last_prompt(house: House) -> str:
    """What the shard was last asked to go on from."""
    prefills = [call for method, call in house.shard.calls if method == "Prefill"]
    token_ids = prefills[-1].batch.requests[0].token_ids
    return bytes(token_id - NUM_SPECIAL for token_id in token_ids).decode()


async def test_a_response_is_read_again_as_it_was_answered() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, metadata={"a": "b"})
        again = await call(house, "GET", f"/{answer['id']}")

    assert again == (200, answer)


async def test_a_streamed_response_is_remembered_too() -> None:
    async with housing(saying_after_hi("ok")) as house, house.client as client:
        events = (await client.post(PATH, json={"input": "hi", "stream": True})).text
        response_id = events.partition('"id":"')[2].partition('"')[0]
        _, again = await call(house, "GET", f"/{response_id}")

    assert again["output"][0]["content"][0]["text"] == "ok"
    assert again["status"] == "completed"


async def test_a_response_goes_on_from_another() -> None:
    async with housing(saying_after_hi("ok")) as house:
        first = await post(house)
        second = await post(house, input="so?", previous_response_id=first["id"])
        third = await post(
            house, input="yes?", previous_response_id=second["id"], max_output_tokens=1
        )

        texts = [one["output"][0]["content"][0]["text"] for one in (first, second)]
        assert last_prompt(house) == (
            f"user: hi\nassistant: {texts[0]}\nuser: so?\nassistant: {texts[1]}\nuser: yes?\n"
        )

    assert third["previous_response_id"] == second["id"]


async def test_instructions_hold_for_one_response() -> None:
    shard = FakeShard(script=saying("ok", len("system: be kind\nuser: hi\n")))
    async with housing(shard) as house:
        first = await post(house, instructions="be kind")
        await post(house, input="so?", previous_response_id=first["id"], max_output_tokens=1)

        assert last_prompt(house) == "user: hi\nassistant: ok\nuser: so?\n"


async def test_tokens_of_what_was_said_before_are_counted() -> None:
    async with housing(saying_after_hi("ok")) as house:
        first = await post(house)
        body = {"input": "so?", "previous_response_id": first["id"]}
        _, counted = await call(house, "POST", "/input_tokens", body)

    assert counted["input_tokens"] == len("user: hi\nassistant: ok\nuser: so?\n")


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}])
async def test_items_are_referred_to_by_their_ids(kind: Any) -> None:
    async with housing(saying_after_hi("ok")) as house:
        first = await post(house)
        asked = {"id": "msg_mine", "role": "user", "content": "so?"}
        await post(house, input=[asked], max_output_tokens=1)
        references = [{**kind, "id": item_id} for item_id in ("msg_mine", first["output"][0]["id"])]
        again = await post(house, input=[*references, asked], max_output_tokens=1)

        assert again["status"] == "incomplete"
        assert last_prompt(house) == "user: so?\nassistant: ok\nuser: so?\n"


async def test_a_reference_to_what_is_not_known_is_a_404_with_its_place() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, "mine")
        lost = [{"role": "user", "content": "hi"}, {"id": answer["output"][0]["id"]}]
        status, told = await call(house, "POST", "", {"input": lost}, key="yours")

    assert (status, told["error"]["code"]) == (404, "item_not_found")
    assert told["error"]["param"] == "input[1].id"


@pytest.mark.parametrize(
    ("path", "allowed"), [("/resp_1", "DELETE, GET, HEAD"), ("/input_tokens", "POST"), ("", "POST")]
)
async def test_a_wrong_method_names_the_right_ones(path: str, allowed: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.put(f"{PATH}{path}")

    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_a_response_is_not_streamed_again() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house)
        status, told = await call(house, "GET", f"/{answer['id']}?stream=true")

    assert (status, told["error"]["param"]) == (400, "stream")


async def test_a_deleted_response_is_gone() -> None:
    async with housing(saying_after_hi("ok")) as house:
        response_id = (await post(house))["id"]
        deleted = await call(house, "DELETE", f"/{response_id}")
        again = await call(house, "DELETE", f"/{response_id}")

    assert deleted == (200, {"id": response_id, "object": "response", "deleted": True})
    assert (again[0], again[1]["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", "")])
async def test_what_is_not_stored_is_not_found(method: str, path: str) -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, store=False)
        status, told = await call(house, method, f"/{answer['id']}{path}")

    assert (status, told["error"]["code"]) == (404, "response_not_found")


async def test_another_key_does_not_see_a_response() -> None:
    async with housing(saying_after_hi("ok")) as house:
        response_id = (await post(house, "mine"))["id"]
        mine, _ = await call(house, "GET", f"/{response_id}", key="mine")
        yours, _ = await call(house, "GET", f"/{response_id}", key="yours")
        body = {"input": "so?", "previous_response_id": response_id}
        status, told = await call(house, "POST", "", body, key="yours")

    assert (mine, yours, status) == (200, 404, 404)
    assert told["error"]["param"] == "previous_response_id"
    assert told["error"]["code"] == "previous_response_not_found"
    assert f"`{response_id}`" in told["error"]["message"]


async def test_a_failed_response_is_not_remembered() -> None:
    shard = saying_after_hi("ok")
    shard.faults.row_errors[None] = "its logits are NaN"
    async with housing(shard) as house, house.client as client:
        events = (await client.post(PATH, json={"input": "hi", "stream": True})).text
        response_id = events.partition('"id":"')[2].partition('"')[0]
        status, _ = await call(house, "GET", f"/{response_id}")

    assert "event: response.failed\n" in events
    assert status == 404


async def test_a_conversation_that_is_too_long_is_cut_at_its_beginning_if_it_may_be() -> None:
    turns = [
        {"role": "developer", "content": "be kind"},
        *(
            {"role": role, "content": f"{number}{'y' * 20}"}
            for number in range(3)
            for role in ("user", "assistant")
        ),
        {"role": "user", "content": "so?"},
    ]
    async with housing(FakeShard()) as house:
        status, told = await call(house, "POST", "", {"input": turns})
        assert (status, told["error"]["param"]) == (400, "input")

        await post(house, input=turns, truncation="auto", max_output_tokens=1)
        y = "y" * 20
        assert last_prompt(house) == (f"system: be kind\nuser: 2{y}\nassistant: 2{y}\nuser: so?\n")


async def test_a_conversation_that_fits_is_not_cut() -> None:
    async with housing(FakeShard()) as house:
        await post(house, truncation="auto", instructions="be kind", max_output_tokens=1)

        assert last_prompt(house) == "system: be kind\nuser: hi\n"


async def test_a_last_turn_that_is_too_long_is_refused() -> None:
    async with housing(FakeShard()) as house:
        body = {"input": "a" * 150, "truncation": "auto"}
        status, told = await call(house, "POST", "", body)

    assert (status, told["error"]["param"]) == (400, "input")
