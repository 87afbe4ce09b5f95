"""/v1/responses as a stream of typed, numbered events."""

from typing import Any

from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request, record
from tests.router.http.responses.asking import PATH, saying_after_hi, stream
from tests.router.rig import settled


def text_of(events: list[Any]) -> str:
    return "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )


async def test_a_stream_is_openai_s_sequence_of_events() -> None:
    async with housing(saying_after_hi("ok")) as house:
        created, begun, *events, completed = await stream(house)

    response = created["response"]
    assert (created["type"], begun["type"]) == ("response.created", "response.in_progress")
    assert begun["response"] == response
    assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    whole = completed["response"]
    assert completed["type"] == "response.completed"
    assert (whole["id"], whole["created_at"]) == (response["id"], response["created_at"])
    assert whole["usage"]["total_tokens"] == 12
    (item,) = whole["output"]
    place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": "ok", "annotations": [], "logprobs": []}
    assert item["content"] == [part]
    assert events == [
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {**item, "status": "in_progress", "content": []},
        },
        {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
        *(
            {"type": "response.output_text.delta", **place, "delta": letter, "logprobs": []}
            for letter in "ok"
        ),
        {"type": "response.output_text.done", **place, "text": "ok", "logprobs": []},
        {"type": "response.content_part.done", **place, "part": part},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
    ]


async def test_a_stream_that_is_cut_ends_incomplete() -> None:
    async with housing(saying_after_hi("hello")) as house:
        *events, last = await stream(house, max_output_tokens=3)

    assert text_of(events) == "hel"
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["item"]["status"] == "incomplete"


async def test_text_that_was_held_back_comes_before_the_end() -> None:
    async with housing(saying_after_hi("hell")) as house:
        *events, last = await stream(house, stop="llo")

    assert text_of(events) == "hell"
    assert last["response"]["output"][0]["content"][0]["text"] == "hell"


async def test_an_answer_without_text_has_its_message_all_the_same() -> None:
    async with housing(saying_after_hi("")) as house:
        events = await stream(house)

    assert [event["type"] for event in events[2:]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


async def test_logprobs_come_with_their_tokens_and_whole_at_the_end() -> None:
    include = ["message.output_text.logprobs"]
    async with housing(saying_after_hi("ok")) as house:
        events = await stream(house, include=include, top_logprobs=1)

    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    told = [entry for delta in deltas for entry in delta["logprobs"]]
    assert [entry["token"] for entry in told] == ["o", "k", "</s>"]
    assert [len(entry["top_logprobs"]) for entry in told] == [1, 1, 1]
    (done,) = (event for event in events if event["type"] == "response.output_text.done")
    assert done["logprobs"] == told
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told


async def test_a_stream_that_fails_ends_with_an_error_and_a_failed_response() -> None:
    shard = saying_after_hi("ok")
    shard.faults.row_errors[None] = "its logits are NaN"
    async with housing(shard) as house:
        created, _, error, failed = await stream(house)

    assert error == {
        "type": "error",
        "code": "generation",
        "message": "its logits are NaN",
        "param": None,
    }
    assert failed["type"] == "response.failed"
    fault = {"code": "server_error", "message": "its logits are NaN"}
    assert failed["response"] == {**created["response"], "status": "failed", "error": fault}


async def test_a_stream_begins_before_its_first_token() -> None:
    body = b'{"input": "hi", "stream": true}'
    async with housing(saying_after_hi("ok")) as house, listening(house.app) as port:
        answer = await record(port, "POST", PATH, body)

    # The beginning is a chunk of its own; it did not wait for the token behind it.
    beginning = answer.partition(b"\r\n\r\n")[2].split(b"\r\n")[1]
    names = [line for line in beginning.split(b"\n") if line.startswith(b"event: ")]
    assert names == [b"event: response.created", b"event: response.in_progress"]


async def test_a_client_that_leaves_ends_its_response_which_is_not_remembered() -> None:
    body = b'{"input": "hi", "stream": true, "ignore_eos": true}'
    async with housing(FakeShard()) as house, listening(house.app) as port:
        house.shard.faults.delay_s = 0.01
        reader, writer = await open_request(port, "POST", PATH, body)
        beginning = await reader.readuntil(b"event: response.output_text.delta\n")
        writer.close()
        await writer.wait_closed()
        await settled(house.rig)
        num_steps = sum(method in ("Prefill", "Decode") for method, _ in house.shard.calls)
        response_id = beginning.partition(b'"id":"')[2].partition(b'"')[0].decode()
        async with house.client as client:
            answer = await client.get(f"{PATH}/{response_id}")

    assert num_steps < 100
    assert answer.status_code == 404
