"""/v1/responses: OpenAI's newest shapes, read again, gone on from, with tools."""

import json
import tracemalloc
from collections.abc import Sequence
from typing import Any
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from constraints.spec import ConstraintSpec, Kind, Whitespace
from router.http.conversation import Turn
from router.http.responses.routes import fit
from router.http.tools import AllowedTool, AllowedTools, add_tools, tool_grammar
from router.request.errors import ConstraintRefused
from router.request.request import Constraint
from router.text.answer_format import GENERIC_CALLS
from tests.byte_tokenizer import NUM_SPECIAL
from tests.checks import FakeChecks
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.answering import SHORT_TEMPLATE
from tests.router.http.calls import HERMES, Call, written
from tests.router.http.harness import SEED, House, housing
from tests.router.http.responses.asking import (
    PATH,
    PROMPT,
    first_request,
    post,
    prompt_of,
    refuse,
    saying_after_hi,
    stream,
    text_of,
)


async def test_an_answer_is_a_whole_response() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house)

    assert answer.pop("id").startswith("resp_")
    assert answer["output"][0].pop("id").startswith("msg_")
    created_s = answer.pop("created_at")
    completed_s = answer.pop("completed_at")
    assert 1_700_000_000 < created_s <= completed_s
    part = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    assert answer == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "fake/model",
        "output": [
            {"type": "message", "status": "completed", "role": "assistant", "content": [part]}
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": 6,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 15,
            "work_details": ANY,
        },
        "user": None,
        "metadata": {},
    }


async def test_what_was_asked_for_is_told_back() -> None:
    asked = {
        "instructions": "be kind",
        "max_output_tokens": 7,
        "max_tool_calls": 3,
        "metadata": {"purpose": "none"},
        "model": "model",
        "parallel_tool_calls": False,
        "prompt_cache_key": "key",
        "safety_identifier": "somebody",
        "store": False,
        "temperature": 0.5,
        "tool_choice": "none",
        "top_logprobs": 2,
        "top_p": 0.25,
        "truncation": "auto",
        "user": "you",
    }
    async with housing(FakeShard()) as house:
        answer = await post(house, **asked)

    assert {field: answer[field] for field in asked} == asked


async def test_an_answer_that_is_cut_is_incomplete() -> None:
    async with housing(saying_after_hi("hello")) as house:
        answer = await post(house, max_output_tokens=3)

    assert (answer["status"], answer["completed_at"]) == ("incomplete", None)
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["status"] == "incomplete"
    assert text_of(answer) == "hel"


async def test_a_deadline_leaves_a_response_incomplete() -> None:
    shard = saying_after_hi("a" * 60)
    shard.faults.delay_s = 0.05
    async with housing(shard) as house:
        answer = await post(house, max_time=0.3)

    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "deadline"}
    assert 0 < len(text_of(answer)) < 60


async def test_cached_tokens_are_told_of() -> None:
    async with housing(saying_after_hi("ok")) as house:
        await post(house)
        answer = await post(house)

    assert answer["usage"]["input_tokens_details"]["cached_tokens"] == 8


PARTS = [{"type": "input_text", "text": "h"}, {"type": "input_text", "text": "i"}]


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        ("hi", "user: hi\n"),
        ([{"role": "user", "content": "hi"}], "user: hi\n"),
        ([{"type": None, "id": None, "role": "user", "content": "hi"}], "user: hi\n"),
        ([{"type": "message", "role": "user", "content": PARTS}], "user: hi\n"),
        (
            [{"role": "developer", "content": "be kind"}, {"role": "user", "content": "hi"}],
            "system: be kind\nuser: hi\n",
        ),
        (
            [
                {"role": "user", "content": "hi"},
                {
                    "id": "msg_1",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": "ho", "annotations": []}],
                },
                {"role": "user", "content": "so?"},
            ],
            "user: hi\nassistant: ho\nuser: so?\n",
        ),
    ],
)
async def test_input_is_a_text_or_a_list_of_messages(given: Any, prompt: str) -> None:
    async with housing(FakeShard()) as house:
        await post(house, given, max_output_tokens=1)

        assert prompt_of(house) == prompt


async def test_instructions_come_first() -> None:
    async with housing(FakeShard()) as house:
        await post(house, instructions="be kind", max_output_tokens=1)

        assert prompt_of(house) == "system: be kind\nuser: hi\n"


async def test_every_parameter_reaches_the_shard() -> None:
    async with housing(FakeShard()) as house:
        await post(
            house,
            temperature=0.5,
            top_p=0.75,
            top_k=9,
            min_p=0.125,
            repetition_penalty=1.5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"5": 2},
            seed=11,
            max_output_tokens=4,
            ignore_eos=True,
        )
        request = first_request(house)

    sampling = request.sampling
    stopping = request.stopping
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 9)
    assert (sampling.min_p, sampling.repetition_penalty, sampling.seed) == (0.125, 1.5, 11)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
    assert dict(sampling.logit_bias) == {5: 2.0}
    assert (stopping.max_new_tokens, stopping.ignore_eos) == (4, True)


@pytest.mark.parametrize(
    ("fields", "samples"), [({}, True), ({"temperature": 0, "top_k": 5, "top_p": 0.5}, False)]
)
async def test_sampling_is_the_default_and_temperature_0_is_greedy(
    fields: Any, samples: bool
) -> None:
    async with housing(FakeShard()) as house:
        await post(house, max_output_tokens=1, **fields)
        sampling = first_request(house).sampling

    assert sampling.do_sample is samples
    assert sampling.seed == (SEED if samples else 0)


async def test_a_stop_string_is_dropped() -> None:
    async with housing(saying_after_hi("hello you")) as house:
        answer = await post(house, stop="llo")

    assert (text_of(answer), answer["status"]) == ("he", "completed")


async def test_logprobs_are_told_when_they_are_included() -> None:
    entry = {
        "token": "o",
        "logprob": -0.25,
        "bytes": [111],
        "top_logprobs": [
            {"token": "o", "logprob": -0.25, "bytes": [111]},
            {"token": "p", "logprob": -1.25, "bytes": [112]},
        ],
    }
    include = ["message.output_text.logprobs"]
    async with housing(saying_after_hi("ok")) as house:
        answer = await post(house, include=include, top_logprobs=2, max_output_tokens=1)
        bare = await post(house, include=include, max_output_tokens=1)

        assert first_request(house).logprobs.raw

    assert answer["output"][0]["content"][0]["logprobs"] == [entry]
    assert bare["output"][0]["content"][0]["logprobs"] == [{**entry, "top_logprobs": []}]


ONE_SYSTEM = """\
{%- for m in messages %}
    {%- if m.role == 'system' and not loop.first %}{{- raise_exception('system first') }}{% endif %}
    {{- m.role + ': ' + m.content + ';' }}
{%- endfor %}"""


async def test_instructions_and_a_developer_are_one_message_where_the_template_takes_one() -> None:
    given = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}]
    async with housing(FakeShard(), templates={"default": ONE_SYSTEM}) as house:
        await post(house, given, instructions="be kind")

        assert prompt_of(house) == "system: be kind\n\nbe brief;user: hi;"


async def test_what_the_template_refuses_is_the_input() -> None:
    given = [{"role": "user", "content": "hi"}, {"role": "system", "content": "be brief"}]
    async with housing(FakeShard(), templates={"default": ONE_SYSTEM}) as house:
        for path in (PATH, f"{PATH}/input_tokens"):
            status, error = await refuse(house, {"input": given}, path)
            assert (status, error["param"]) == (400, "input")
            assert "system first" in error["message"]


async def test_settings_that_the_template_reads_are_obeyed() -> None:
    template = "{{ messages[0].content }} {{ reasoning_effort }} {{ verbosity }}"
    async with housing(FakeShard(), templates={"default": template}) as house:
        answer = await post(house, reasoning={"effort": "high"}, text={"verbosity": "low"})

        assert prompt_of(house) == "hi high low"

    assert answer["reasoning"] == {"effort": "high", "summary": None}
    assert answer["text"] == {"format": {"type": "text"}, "verbosity": "low"}


HINTS: list[Any] = [
    {"background": False, "context_management": [], "tools": []},
    {"include": ["reasoning.encrypted_content"]},
    {"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}},
    {"prompt_cache_retention": "24h", "service_tier": "flex"},
    {"reasoning": {"effort": "none", "summary": None}},
    {"stream_options": {"include_obfuscation": False}},
    {"text": {"format": {"type": "text"}, "verbosity": "medium"}},
    {"conversation": None, "text": None, "reasoning": None, "prompt": None},
]


async def test_hints_and_nulls_change_nothing() -> None:
    async with housing(saying_after_hi("ok")) as house:
        for fields in HINTS:
            assert text_of(await post(house, **fields)) == "ok"


JSON_OF_A = {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": True}


@pytest.mark.parametrize(
    ("form", "schema"),
    [
        ({"type": "json_object"}, '{"type":"object"}'),
        (JSON_OF_A, '{"type":"object"}'),
    ],
)
async def test_a_format_is_a_constraint_and_told_back(form: Any, schema: str) -> None:
    checks = FakeChecks()
    async with housing(saying_after_hi("{}"), checks=checks) as house:
        answer = await post(house, text={"format": form})

    assert [constraint.spec.text for constraint, *_ in checks.asked] == [schema]
    assert answer["text"]["format"] == form


async def call(
    house: House, method: str, path: str, body: Any = None, *, key: str | None = None
) -> tuple[int, Any]:
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    async with house.client as client:
        answer = await client.request(method, f"{PATH}{path}", json=body, headers=headers)
    return answer.status_code, answer.json()


async def ask(house: House, key: str | None = None, **fields: Any) -> Any:
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
        answer = await ask(house, metadata={"a": "b"})
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
        first = await ask(house)
        second = await ask(house, input="so?", previous_response_id=first["id"])
        third = await ask(
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
        first = await ask(house, instructions="be kind")
        await ask(house, input="so?", previous_response_id=first["id"], max_output_tokens=1)

        assert last_prompt(house) == "user: hi\nassistant: ok\nuser: so?\n"


async def test_tokens_of_what_was_said_before_are_counted() -> None:
    async with housing(saying_after_hi("ok")) as house:
        first = await ask(house)
        body = {"input": "so?", "previous_response_id": first["id"]}
        _, counted = await call(house, "POST", "/input_tokens", body)

    assert counted["input_tokens"] == len("user: hi\nassistant: ok\nuser: so?\n")


@pytest.mark.parametrize("kind", [{"type": "item_reference"}, {"type": None}, {}])
async def test_items_are_referred_to_by_their_ids(kind: Any) -> None:
    async with housing(saying_after_hi("ok")) as house:
        first = await ask(house)
        asked = {"id": "msg_mine", "role": "user", "content": "so?"}
        await ask(house, input=[asked], max_output_tokens=1)
        references = [{**kind, "id": item_id} for item_id in ("msg_mine", first["output"][0]["id"])]
        again = await ask(house, input=[*references, asked], max_output_tokens=1)

        assert again["status"] == "incomplete"
        assert last_prompt(house) == "user: so?\nassistant: ok\nuser: so?\n"


async def test_a_reference_to_what_is_not_known_is_a_404_with_its_place() -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await ask(house, "mine")
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
        answer = await ask(house)
        status, told = await call(house, "GET", f"/{answer['id']}?stream=true")

    assert (status, told["error"]["param"]) == (400, "stream")


async def test_a_deleted_response_is_gone() -> None:
    async with housing(saying_after_hi("ok")) as house:
        response_id = (await ask(house))["id"]
        deleted = await call(house, "DELETE", f"/{response_id}")
        again = await call(house, "DELETE", f"/{response_id}")

    assert deleted == (200, {"id": response_id, "object": "response", "deleted": True})
    assert (again[0], again[1]["error"]["code"]) == (404, "response_not_found")


@pytest.mark.parametrize(("method", "path"), [("GET", ""), ("DELETE", "")])
async def test_what_is_not_stored_is_not_found(method: str, path: str) -> None:
    async with housing(saying_after_hi("ok")) as house:
        answer = await ask(house, store=False)
        status, told = await call(house, method, f"/{answer['id']}{path}")

    assert (status, told["error"]["code"]) == (404, "response_not_found")


async def test_another_key_does_not_see_a_response() -> None:
    async with housing(saying_after_hi("ok")) as house:
        response_id = (await ask(house, "mine"))["id"]
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

        await ask(house, input=turns, truncation="auto", max_output_tokens=1)
        y = "y" * 20
        assert last_prompt(house) == (f"system: be kind\nuser: 2{y}\nassistant: 2{y}\nuser: so?\n")


async def test_a_conversation_that_fits_is_not_cut() -> None:
    async with housing(FakeShard()) as house:
        await ask(house, truncation="auto", instructions="be kind", max_output_tokens=1)

        assert last_prompt(house) == "system: be kind\nuser: hi\n"


async def test_a_last_turn_that_is_too_long_is_refused() -> None:
    async with housing(FakeShard()) as house:
        body = {"input": "a" * 150, "truncation": "auto"}
        status, told = await call(house, "POST", "", body)

    assert (status, told["error"]["param"]) == (400, "input")


TURNS = st.builds(
    Turn, st.sampled_from(["system", "developer", "user", "assistant"]), st.text("a", max_size=9)
)


async def count(turns: Sequence[Turn]) -> int:
    """One token for each turn and letter."""
    return sum(1 + len(turn.content) for turn in turns)


def ends_of(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Every end that `fit` may choose, the longest first, found by looking at each."""
    leading = ("system", "developer")
    head_len = 0
    while head_len < len(turns) and turns[head_len].role in leading:
        head_len += 1
    head = list(turns[:head_len])
    return [
        head + list(turns[start:])
        for start in range(head_len, max(len(turns), head_len + 1))
        if start == head_len or turns[start].role == "user"
    ]


@given(st.lists(TURNS, min_size=1, max_size=12), st.integers(0, 80))
async def test_the_longest_end_that_fits_is_kept(turns: list[Turn], max_len: int) -> None:
    ends = ends_of(turns)
    fitting = [end for end in ends if await count(end) <= max_len]

    kept = await fit(turns, max_len, count)

    assert list(kept) == (fitting[0] if fitting else ends[-1])


async def test_a_conversation_that_fits_is_counted_once() -> None:
    counted = []

    async def counting(turns: Sequence[Turn]) -> int:
        counted.append(len(turns))
        return await count(turns)

    turns = [Turn(role, "a") for role in ("user", "assistant") * 50]
    assert list(await fit(turns, 1000, counting)) == turns
    assert counted == [100]


async def test_few_lengths_are_looked_at() -> None:
    num_counted = 0

    async def counting(turns: Sequence[Turn]) -> int:
        nonlocal num_counted
        num_counted += 1
        return await count(turns)

    turns = [Turn(role, "a") for role in ("user", "assistant") * 500]
    kept = await fit(turns, 100, counting)

    assert len(kept) == 50
    assert num_counted <= 11


async def test_what_is_cut_is_not_copied_for_every_end() -> None:
    turns = [Turn("user", "a")] * 20_000
    tracemalloc.start()
    await fit(turns, 100, count)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak_bytes < 10_000_000


TEMPLATE = SHORT_TEMPLATE
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
LOOK = {"type": "function", "name": "look", "description": "see", "parameters": CITY}
WAIT = {"type": "function", "name": "wait", "parameters": {"type": "object"}, "strict": False}
ALLOWED_LOOK = AllowedTool("look", CITY, "tools[0].parameters")
ALLOWED_WAIT = AllowedTool("wait", {"type": "object"}, "tools[1].parameters")
HI = [{"role": "user", "content": "hi"}]
ROME: Call = ("look", {"city": "Rome"})
BOTH = [ROME, ("wait", {})]
ONLY_WAIT = {"type": "allowed_tools", "mode": "required", "tools": [{**WAIT, "strict": None}]}


def house_of(text: str, checks: FakeChecks | None = None) -> Any:
    shard = FakeShard(script=saying(text, len(PROMPT)))
    return housing(shard, templates={"default": TEMPLATE}, checks=checks)


def arguments_of(events: list[Any]) -> list[str]:
    """The streamed arguments of each call, in the order of their items."""
    joined: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            joined[event["item_id"]] = joined.get(event["item_id"], "") + event["delta"]
    return list(joined.values())


@pytest.mark.parametrize(
    ("choice", "offer"),
    [
        ({}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"tool_choice": "auto"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, True)),
        ({"parallel_tool_calls": False}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), True, False)),
        ({"tool_choice": "required"}, AllowedTools((ALLOWED_LOOK, ALLOWED_WAIT), False, True)),
        (
            {"tool_choice": {"type": "function", "name": "wait"}},
            AllowedTools((ALLOWED_WAIT,), False, False),
        ),
        ({"tool_choice": ONLY_WAIT}, AllowedTools((ALLOWED_WAIT,), False, True)),
    ],
    ids=lambda given: str(given)[:40],
)
async def test_tools_and_their_choice_are_one_grammar(choice: Any, offer: AllowedTools) -> None:
    checks = FakeChecks()
    async with house_of("x", checks) as house:
        await post(house, tools=[LOOK, WAIT], **choice)

    *parts, (whole, *_) = checks.asked
    spec = ConstraintSpec(Kind.LARK, tool_grammar(offer, HERMES), Whitespace.OPTIONAL)
    assert whole == Constraint(spec)
    assert [json.loads(part.spec.text) for part, *_ in parts] == [
        tool.parameters for tool in offer.tools
    ]


async def test_tools_that_are_not_to_be_called_leave_answers_free() -> None:
    checks = FakeChecks()
    async with house_of("ok", checks) as house:
        answer = await post(house, tools=[LOOK], tool_choice="none")

    assert checks.asked == []
    assert [item["type"] for item in answer["output"]] == ["message"]


async def test_a_tool_that_cannot_be_kept_is_refused_by_its_place() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})
    async with house_of("x", FakeChecks(lambda _: reason)) as house, house.client as client:
        answer = await client.post(PATH, json={"input": "hi", "tools": [LOOK]})

    error = answer.json()["error"]
    assert answer.status_code == 422
    assert (error["param"], error["code"]) == ("tools[0].parameters", "not_enforced")


async def test_calls_are_items_behind_the_message() -> None:
    async with house_of(written(HERMES, BOTH, said="So.")) as house:
        answer = await post(house, tools=[LOOK, WAIT], max_output_tokens=140)

    message, first, second = answer["output"]
    assert (message["type"], message["status"]) == ("message", "completed")
    assert message["content"][0]["text"] == "So."
    ids = {item.pop(key) for item in (first, second) for key in ("id", "call_id")}
    assert first == {
        "type": "function_call",
        "status": "completed",
        "name": "look",
        "arguments": '{"city": "Rome"}',
    }
    assert second == {**first, "name": "wait", "arguments": "{}"}
    assert sorted(one.partition("_")[0] for one in ids) == ["call", "call", "fc", "fc"]
    assert (answer["status"], answer["constraint_satisfied"]) == ("completed", True)


async def test_a_call_alone_is_the_whole_output() -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        answer = await post(house, tools=[LOOK], tool_choice="required", max_output_tokens=100)

    assert [item["type"] for item in answer["output"]] == ["function_call"]


async def test_text_alone_is_a_message() -> None:
    async with house_of("So, <tool") as house:
        answer = await post(house, tools=[LOOK])

    (message,) = answer["output"]
    assert message["content"][0]["text"] == "So, <tool"


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_that_is_cut_is_incomplete(streams: bool) -> None:
    async with house_of(written(HERMES, [ROME])) as house:
        asked = {"tools": [LOOK], "max_output_tokens": 50}
        if streams:
            answer = (await stream(house, **asked))[-1]["response"]
        else:
            answer = await post(house, **asked)

    (call,) = answer["output"]
    assert (call["name"], call["status"]) == ("look", "incomplete")
    assert '{"city": "Rome"}'.startswith(call["arguments"])
    assert answer["status"] == "incomplete"


@pytest.mark.parametrize(
    ("text", "status", "streams"),
    [
        (written(HERMES, BOTH), "completed", True),
        (written(HERMES, BOTH).partition("wait")[0], "incomplete", False),
    ],
)
async def test_a_response_that_ends_behind_whole_calls_is_complete(
    text: str, status: str, streams: bool
) -> None:
    async with house_of(text + " and more") as house:
        asked = {"tools": [LOOK, WAIT], "max_output_tokens": len(text)}
        if streams:
            *_, last = await stream(house, **asked)
            assert last["type"] == f"response.{status}"
            answer = last["response"]
        else:
            answer = await post(house, **asked)

    is_cut = status == "incomplete"
    assert answer["status"] == status
    assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if is_cut else None)
    assert (answer["completed_at"] is None) == is_cut
    assert {item["status"] for item in answer["output"]} == {"completed"}


async def test_tools_and_their_choice_are_told_back() -> None:
    async with house_of("x") as house:
        answer = await post(house, tools=[LOOK, WAIT], tool_choice=ONLY_WAIT)
        bare = await post(house, tools=[LOOK])
        strict = await post(house, tools=[{**LOOK, "strict": True}, WAIT])

    assert answer["tools"] == [{**LOOK, "strict": None}, {**WAIT, "description": None}]
    assert [tool["strict"] for tool in strict["tools"]] == [True, False]
    wanted = [{"type": "function", "name": "wait"}]
    assert answer["tool_choice"] == {**ONLY_WAIT, "tools": wanted}
    assert bare["tool_choice"] == "auto"


async def test_calls_are_streamed_as_they_come() -> None:
    async with house_of(written(HERMES, BOTH, said="So.")) as house:
        events = await stream(house, tools=[LOOK, WAIT], max_output_tokens=140)

    last = events[-1]
    assert last["type"] == "response.completed"
    message, first, second = last["response"]["output"]
    deltas = ("response.output_text.delta", "response.function_call_arguments.delta")
    assert [event["type"] for event in events[2:-1] if event["type"] not in deltas] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *(
            "response.output_item.added",
            "response.function_call_arguments.done",
            "response.output_item.done",
        )
        * 2,
    ]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    begun = [{**call, "status": "in_progress", "arguments": ""} for call in (first, second)]
    assert [event["item"] for event in added[1:]] == begun
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [(event["output_index"], event["item"]) for event in done] == [
        (0, message),
        (1, first),
        (2, second),
    ]
    assert arguments_of(events) == [first["arguments"], second["arguments"]]
    assert len([event for event in events if event["type"] == deltas[1]]) > 10
    told = [e for e in events if e["type"] == "response.function_call_arguments.done"]
    assert [(e["item_id"], e["output_index"], e["name"], e["arguments"]) for e in told] == [
        (first["id"], 1, "look", first["arguments"]),
        (second["id"], 2, "wait", "{}"),
    ]


async def test_log_probabilities_are_of_the_text_and_not_of_the_calls() -> None:
    asked = {"tools": [LOOK], "top_logprobs": 1, "max_output_tokens": 140}
    async with house_of(written(HERMES, [ROME], said="So, <b>")) as house:
        answer = await post(house, **asked)
        events = await stream(house, **asked)

    told = answer["output"][0]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in told) == "So, <b>"
    streamed = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [entry for event in streamed for entry in event["logprobs"]] == told
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == told


async def loop(house: House, first: dict[str, Any], **given: Any) -> str:
    """The prompt with which an answer goes on, once its calls have their outputs."""
    house.shard.calls.clear()
    calls = [item for item in first["output"] if item["type"] == "function_call"]
    outputs = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": output}
        for call, output in zip(calls, ("sun", [{"type": "input_text", "text": "ok"}]), strict=True)
    ]
    before = given.pop("before", [])
    await post(house, [*before, *outputs], tools=[LOOK, WAIT], max_output_tokens=1, **given)
    return prompt_of(house)


async def test_an_answer_goes_on_from_what_its_calls_came_to() -> None:
    shard = FakeShard(
        script=saying(written(HERMES, BOTH, said="S"), len("user: hi\n")), num_blocks=99
    )
    async with housing(shard, templates={"default": TEMPLATE}, max_total_len=390) as house:
        first = await post(house, HI, tools=[LOOK, WAIT], max_output_tokens=140)
        repeated = await loop(house, first, before=[*HI, *first["output"]])
        remembered = await loop(house, first, previous_response_id=first["id"])

    assert repeated == remembered
    called = written(HERMES, BOTH, said="S")
    assert remembered == f"user: hi\nassistant: {called}\ntool: sun\ntool: ok\n"


SAY = {"type": "object", "properties": {"say": {"type": "string"}}}
FORM = {"format": {"type": "json_schema", "name": "say", "schema": SAY}}


@pytest.mark.parametrize(
    ("text", "kinds"),
    [('{"say": "<tool_call>"}', ["message"]), (written(HERMES, [ROME]), ["function_call"])],
    ids=["says", "calls"],
)
async def test_an_answer_that_does_not_call_may_have_a_form(text: str, kinds: list[str]) -> None:
    checks = FakeChecks()
    async with house_of(text, checks) as house:
        answer = await post(house, tools=[LOOK], text=FORM, max_output_tokens=100)

    assert [item["type"] for item in answer["output"]] == kinds
    if kinds == ["message"]:
        assert answer["output"][0]["content"][0]["text"] == text
    *parts, (whole, *_) = checks.asked
    assert [json.loads(part.spec.text) for part, *_ in parts] == [CITY, SAY]
    grammar = tool_grammar(
        AllowedTools((ALLOWED_LOOK,), True, True), HERMES, parts[-1][0].spec.text
    )
    assert whole.spec.text == grammar


async def test_a_form_that_cannot_be_kept_is_named_beside_tools() -> None:
    reason = ConstraintRefused("`not` is not enforced", "not_enforced", {"pointer": "/not"})

    def refuse_form(constraint: Constraint) -> ConstraintRefused | None:
        return reason if "say" in constraint.spec.text else None

    async with house_of("x", FakeChecks(refuse_form)) as house, house.client as client:
        answer = await client.post(PATH, json={"input": "hi", "tools": [LOOK], "text": FORM})

    assert (answer.status_code, answer.json()["error"]["param"]) == (422, "text.format")


async def test_a_form_and_calls_that_are_json_are_refused() -> None:
    bare = (
        "{% for m in messages %}{% for call in m.tool_calls or [] %}"
        '{"name": "{{ call.function.name }}", "parameters": {{ call.function.arguments | tojson }}}'
        "{% else %}{{ m.content }}{% endfor %}{% endfor %}"
    )
    async with housing(FakeShard(), templates={"default": bare}) as house:
        status, error = await refuse(house, {"input": "hi", "tools": [WAIT], "text": FORM})
        told = {"tools": [WAIT], "text": FORM, "tool_choice": "none", "max_output_tokens": 1}
        await post(house, **told)

    assert (status, error["param"], error["code"]) == (422, "text.format", "tool_error")


async def num_tokens_of(template: str, **fields: Any) -> int:
    """The length of a prompt, which may be too long to be answered."""
    house = housing(FakeShard(), templates={"default": template})
    async with house as opened, opened.client as client:
        answer = await client.post(f"{PATH}/input_tokens", json={"input": "hi", **fields})
    return int(answer.json()["input_tokens"])


async def test_tools_are_told_to_a_model_whose_template_shows_none() -> None:
    template = "{{ messages[-1].content }}"
    tools = [{"type": "function", "name": "n"}]
    told = [{"type": "function", "function": {"name": "n"}}]
    callable_len = await num_tokens_of(template, tools=tools)

    assert callable_len == len(
        "".join(tell["content"] for tell in add_tools(HI, told, GENERIC_CALLS))
    )
    assert await num_tokens_of(template, tools=tools, tool_choice="none") == len("hi")


async def test_tools_are_counted_as_they_are_shown() -> None:
    function = {"name": "wait", "parameters": {"type": "object"}}
    shown = json.dumps([{"type": "function", "function": function}])
    template = "{{ tools | tojson if tools else 'none' }}"

    assert await num_tokens_of(template, tools=[{"type": "function", **function}]) == len(shown)
    assert await num_tokens_of(template) == len("none")
