"""Responses that are kept: within bounds, by their owners, made in the background."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from router.http.responses.schema import FunctionCall, FunctionOutput, Item, MessageItem
from router.http.responses.store import Job, ResponseStore, Stored
from tests.fake_script import letters
from tests.fakes import FakeShard
from tests.router.http.harness import House, housing, listening, open_request
from tests.router.http.responses.asking import PATH, post, refuse, text_of
from tests.router.rig import settled

ME = b"me"
YOU = b"you"


def stored(number: int, previous_id: str | None = None, text: str = "") -> Stored:
    given = (MessageItem(f"msg_q{number}", "user", (f"question {number}{text}",)),)
    answered = (MessageItem(f"msg_a{number}", "assistant", (f"answer {number}",)),)
    return Stored(b"{}", given, answered, previous_id)


def said(items: tuple[Item, ...]) -> list[str]:
    return [text for item in items for text in item.texts]


def test_a_response_is_known_to_its_owner_alone() -> None:
    store = ResponseStore()
    one = stored(1)
    store.keep(ME, "resp_1", one)

    assert store.get(ME, "resp_1") is one
    assert store.get(YOU, "resp_1") is None
    assert not store.forget(YOU, "resp_1")
    with pytest.raises(KeyError, match="resp_1"):
        store.conversation(YOU, "resp_1")


def test_a_conversation_is_the_chain_of_its_responses() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))
    store.keep(ME, "resp_3", stored(3, "resp_2"))

    assert said(store.conversation(ME, "resp_3")) == [
        "question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3",
    ]  # fmt: skip
    assert said(store.conversation(ME, "resp_1")) == ["question 1", "answer 1"]


def test_what_goes_on_from_a_forgotten_response_cannot_be_gone_on_from() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))

    assert store.forget(ME, "resp_1")
    assert store.get(ME, "resp_2") is not None
    with pytest.raises(KeyError, match="resp_1"):
        store.conversation(ME, "resp_2")


def test_an_item_is_known_to_its_owner_while_a_response_holds_it() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", Stored(b"{}", stored(1).given, stored(2).answered, None))

    assert store.item(ME, "msg_a1") == stored(1).answered[0]
    assert store.item(YOU, "msg_a1") is None
    store.forget(ME, "resp_1")
    assert store.item(ME, "msg_a1") is None
    assert store.item(ME, "msg_q1") == stored(1).given[0]
    store.forget(ME, "resp_2")
    assert store.item(ME, "msg_q1") is None


def test_an_item_stays_known_while_an_older_response_holds_it() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    again = (*stored(1).items, *stored(1).items)
    store.keep(ME, "resp_2", Stored(b"{}", again, stored(2).answered, None))
    store.forget(ME, "resp_2")

    assert store.item(ME, "msg_a1") == stored(1).answered[0]
    assert store.item(ME, "msg_a2") is None
    store.forget(ME, "resp_1")
    assert store.item(ME, "msg_a1") is None


def test_the_least_recently_used_is_forgotten_first() -> None:
    store = ResponseStore(max_responses=2)
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2))
    store.get(ME, "resp_1")
    store.keep(ME, "resp_3", stored(3))

    assert store.get(ME, "resp_2") is None
    assert store.get(ME, "resp_1") is not None
    assert len(store) == 2


def test_going_on_uses_the_whole_conversation() -> None:
    store = ResponseStore(max_responses=3)
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))
    store.keep(ME, "resp_3", stored(3))
    store.conversation(ME, "resp_2")
    store.keep(ME, "resp_4", stored(4, "resp_2"))

    assert store.get(ME, "resp_3") is None
    assert len(store.conversation(ME, "resp_4")) == 6


def test_the_bytes_of_all_responses_are_bounded() -> None:
    large = stored(1, text="é" * 1000)
    store = ResponseStore(max_bytes=3 * large.num_bytes)
    for number in range(10):
        store.keep(ME, f"resp_{number}", large)

    assert large.num_bytes > 2000
    assert len(store) == 3
    assert store.num_bytes == 3 * large.num_bytes
    assert store.get(ME, "resp_9") is large


def test_a_text_weighs_what_it_takes_in_memory() -> None:
    plain, wide = (
        Stored(b"{}", (MessageItem("msg", "user", (text,)),), (), None)
        for text in ("a" * 10_000, "a" * 9_999 + "🙂")
    )

    assert plain.num_bytes > 10_000
    assert wide.num_bytes > 40_000


@pytest.mark.parametrize(
    "item",
    [
        FunctionCall("fc", "call", "look", "a" * 10_000),
        FunctionOutput("fco", "call", "a" * 10_000),
        FunctionOutput("fco", "call", ("a" * 5000, "a" * 5000)),
    ],
    ids=lambda item: type(item).__name__,
)
def test_calls_and_their_outputs_weigh_what_they_hold(item: Item) -> None:
    assert Stored(b"{}", (), (item,), None).num_bytes > 10_000


def test_many_empty_messages_are_not_for_free() -> None:
    items = tuple(MessageItem(f"msg_{number}", "user", ("",)) for number in range(1000))
    crowd = Stored(b"{}", items, (), None)

    assert crowd.num_bytes > 1000 * 500


def test_a_response_larger_than_all_the_room_is_not_remembered() -> None:
    store = ResponseStore(max_bytes=100)
    store.keep(ME, "resp_1", stored(1))

    assert (len(store), store.num_bytes) == (0, 0)


def test_forgetting_gives_the_bytes_back() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.forget(ME, "resp_1")

    assert (len(store), store.num_bytes) == (0, 0)
    assert not store.forget(ME, "resp_1")


ASKED = {"input": "hi", "max_output_tokens": 40, "background": True}


def slow_shard() -> FakeShard:
    shard = FakeShard(script=letters)
    shard.faults.delay_s = 0.005
    return shard


def client(port: int, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, headers=headers)


@asynccontextmanager
async def opened() -> AsyncIterator[httpx.AsyncClient]:
    """A client of a running server."""
    async with (
        housing(slow_shard()) as house,
        listening(house.app) as port,
        client(port) as asking,
    ):
        yield asking


async def begin(asking: httpx.AsyncClient, **fields: Any) -> Any:
    answer = await asking.post(PATH, json={**ASKED, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def get(asking: httpx.AsyncClient, response_id: str) -> Any:
    return (await asking.get(f"{PATH}/{response_id}")).json()


async def ended(asking: httpx.AsyncClient, response_id: str) -> Any:
    async with asyncio.timeout(30):
        while (response := await get(asking, response_id))["status"] == "in_progress":
            await asyncio.sleep(0.01)
    return response


def events_of(text: str) -> list[Any]:
    frames = text.split("\n\n")[:-1]
    return [json.loads(frame.split("\ndata: ")[1]) for frame in frames]


async def begin_stream(port: int, num_events: int) -> tuple[str, list[Any]]:
    """The id and first events of a streamed response, whose client then leaves."""
    body = json.dumps({**ASKED, "stream": True}).encode()
    reader, writer = await open_request(port, "POST", PATH, body)
    answer = b""
    async with asyncio.timeout(30):
        while answer.count(b"\n\n") <= num_events:
            part = await reader.read(2000)
            assert part, answer
            answer += part
    writer.transport.abort()
    lines = [line for line in answer.split(b"\n") if line.startswith(b"data: ")]
    events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:num_events]]
    return events[0]["response"]["id"], events


async def test_a_response_is_made_while_its_client_polls() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        expected = text_of(await post(house, max_output_tokens=40))
        async with client(port) as asking:
            begun = await begin(asking)
            response = await ended(asking, begun["id"])

    assert (begun["status"], begun["background"], begun["output"]) == ("in_progress", True, [])
    assert (response["status"], response["background"]) == ("incomplete", True)
    assert response["id"] == begun["id"]
    assert text_of(response) == expected


async def test_what_is_made_so_far_can_be_read() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        expected = text_of(await post(house, max_output_tokens=40))
        async with client(port) as asking:
            begun = await begin(asking)
            while not (part := await get(asking, begun["id"]))["output"]:
                await asyncio.sleep(0.01)
            await ended(asking, begun["id"])

    assert part["output"][0]["status"] == "in_progress"
    assert expected.startswith(text_of(part))
    assert len(text_of(part)) < 40


async def test_a_response_is_cancelled() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        async with client(port) as asking:
            begun = await begin(asking, max_output_tokens=100)
            while not (await get(asking, begun["id"]))["output"]:
                await asyncio.sleep(0.01)
            cancelled = (await asking.post(f"{PATH}/{begun['id']}/cancel")).json()
            again = (await asking.post(f"{PATH}/{begun['id']}/cancel")).json()
            read = await get(asking, begun["id"])
        await settled(house.rig)
        assert house.rig.metrics.sequence_ends.value("cancelled") == 1

    assert cancelled["status"] == "cancelled"
    assert 0 < len(text_of(cancelled)) < 100
    assert cancelled == again == read


async def test_a_cancel_behind_the_end_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    keep = Job.keep

    def keep_and_cancel(job: Job, response: dict[str, Any], status: str) -> None:
        kept.append(status)
        keep(job, response, status)
        job._is_cancelled.set()

    monkeypatch.setattr(Job, "keep", keep_and_cancel)
    async with opened() as asking:
        begun = await begin(asking, max_output_tokens=2)
        response = await ended(asking, begun["id"])

    assert (kept, response["status"]) == (["incomplete"], "incomplete")


async def test_only_responses_of_the_background_are_cancelled() -> None:
    async with housing(slow_shard()) as house:
        made = await post(house, max_output_tokens=2)
        status, error = await refuse(house, {}, f"{PATH}/{made['id']}/cancel")
        unknown, _ = await refuse(house, {}, f"{PATH}/resp_7/cancel")

    assert (status, error["param"]) == (400, "response_id")
    assert "background" in error["message"]
    assert unknown == 404


async def test_a_response_that_is_deleted_ends() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        async with client(port) as asking:
            begun = await begin(asking, max_output_tokens=100)
            deleted = await asking.delete(f"{PATH}/{begun['id']}")
            read = await asking.get(f"{PATH}/{begun['id']}")
        await settled(house.rig)
        assert house.rig.metrics.sequence_ends.value("cancelled") == 1

    assert (deleted.status_code, read.status_code) == (200, 404)


async def test_a_stream_is_read_on_from_any_event() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        response_id, begun = await begin_stream(port, 6)
        async with client(port) as asking:
            path = f"{PATH}/{response_id}"
            query = {"stream": "true", "starting_after": "5"}
            rest = events_of((await asking.get(path, params=query)).text)
            whole = events_of((await asking.get(path, params={"stream": "true"})).text)
            response = await get(asking, response_id)

    assert begun + rest == whole
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    assert whole[-1]["response"] == response
    assert len(text_of(response)) == 40


async def test_events_are_kept_for_streamed_responses_alone() -> None:
    async with opened() as asking:
        begun = await begin(asking, max_output_tokens=2)
        await ended(asking, begun["id"])
        answer = await asking.get(f"{PATH}/{begun['id']}", params={"stream": "true"})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "stream"


async def test_the_number_of_an_event_is_a_number() -> None:
    async with opened() as asking:
        for after in ("-2", "x", "", "1e3"):
            query = {"stream": "true", "starting_after": after}
            answer = await asking.get(f"{PATH}/resp_7", params=query)
            assert answer.json()["error"]["param"] == "starting_after"


async def test_no_response_goes_on_from_one_that_is_still_made() -> None:
    async with opened() as asking:
        begun = await begin(asking)
        body = {"input": "and?", "previous_response_id": begun["id"]}
        early = await asking.post(PATH, json=body)
        await ended(asking, begun["id"])
        late = await asking.post(PATH, json={**body, "max_output_tokens": 2})

    assert early.json()["error"]["param"] == "previous_response_id"
    assert late.status_code == 200


async def test_a_response_that_fails_can_be_read() -> None:
    async with housing(slow_shard()) as house, listening(house.app) as port:
        house.shard.faults.row_errors[None] = "broken"
        async with client(port) as asking:
            begun = await begin(asking)
            response = await ended(asking, begun["id"])

    assert response["status"] == "failed"
    assert "broken" in response["error"]["message"]


async def made_by(house: House) -> tuple[int, int, int]:
    async with listening(house.app) as port:
        async with client(port, authorization="Bearer mine") as asking:
            begun = await begin(asking)
        async with client(port, authorization="Bearer theirs") as asking:
            path = f"{PATH}/{begun['id']}"
            read = await asking.get(path)
            cancelled = await asking.post(f"{path}/cancel")
            streamed = await asking.get(path, params={"stream": "true"})
        await settled(house.rig)
    return read.status_code, cancelled.status_code, streamed.status_code


async def test_a_response_in_the_making_belongs_to_its_key() -> None:
    async with housing(slow_shard(), api_keys=("mine", "theirs")) as house:
        assert await made_by(house) == (404, 404, 404)
        assert house.rig.metrics.sequence_ends.value("cancelled") == 0
