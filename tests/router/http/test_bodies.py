"""Bodies of every kind, long ones and malformed ones: an answer in JSON, and the loop goes on."""

import asyncio
import copy
import gzip
import json
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from router.http.bodies import DEFAULT_BOUNDS, ParserThread
from tests.byte_tokenizer import EOS_ID, byte_ids
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening, open_request
from tests.router.rig import PATIENT

BODY_LEN = 1_990_000
CHAT = "/v1/chat/completions"
MESSAGE = '{"role":"user","content":"a"}'
LONG_MESSAGE = f'{{"role":"user","content":"{112 * "a b "}"}}'
LONG_CALL = f'{{"function":{{"name":"{450 * "f"}"}}}}'
TURN = f'{{"messages":[{MESSAGE}],'
SAID = '{"messages":[{"role":"user","content":"'
# A path, and a body's head, what is repeated as often as there is room, and its tail.
SHAPES = {
    "messages-in-bounds": (CHAT, '{"messages":[', LONG_MESSAGE, "]}"),
    "responses-in-bounds": ("/v1/responses", '{"input":[', LONG_MESSAGE, "]}"),
    "calls-in-bounds": (
        CHAT,
        '{"messages":[{"role":"assistant","tool_calls":[',
        LONG_CALL,
        "]}]}",
    ),
    "keys": (CHAT, TURN, '"k{}":1', "}"),
    "metadata": (CHAT, f'{TURN}"metadata":{{', '"k{}":1', "}}"),
    "stop-ids": ("/generate", '{"inputs":"a","parameters":{"stop_token_ids":[', "1", "]}}"),
    "prompt-ids": ("/v1/completions", '{"prompt":[', "1", "]}"),
    "logit-bias": ("/v1/completions", '{"prompt":"a","logit_bias":{', '"{}":1', "}}"),
    "tokenize": ("/tokenize", '{"inputs":"', "a word", '"}'),
    "control-tokens": (CHAT, SAID, "<|end|>", '"}]}'),
}
# A busy machine stops the loop, too, but not each time.
NUM_TRIES = 3
# Each of these took 60 to 1660 ms on the loop.
MAX_LAG_S = 0.05


def filled(head: str, item: str, tail: str) -> bytes:
    """A body of this length; `{}` in the item is its number."""
    items: list[str] = []
    room = BODY_LEN - len(head) - len(tail)
    while True:
        one = item.replace("{}", str(len(items)))
        room -= len(one) + 1
        if room < 0:
            return f"{head}{','.join(items)}{tail}".encode()
        items.append(one)


async def lag_s(port: int, path: str, body: bytes) -> float:
    """The longest time of this process between two turns of the loop, until the body is answered.

    Whoever holds the interpreter's lock uses it up; other processes do not count.
    """

    async def answer() -> None:
        reader, writer = await open_request(port, "POST", path, body)
        assert (await reader.read()).startswith(b"HTTP/1.1 4")
        writer.close()

    answering = asyncio.create_task(answer())
    longest_s = 0.0
    while not answering.done():
        begun_s = time.process_time()
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.process_time() - begun_s)
    await answering
    return longest_s


@pytest.mark.parametrize("name", SHAPES)
async def test_the_loop_goes_on_while_a_body_is_read(name: str) -> None:
    path, *shape = SHAPES[name]
    body = filled(*shape)
    async with housing(FakeShard(), max_body_len=2_000_000) as house, listening(house.app) as port:
        lags_s = [await lag_s(port, path, body) for _ in range(NUM_TRIES)]

    assert min(lags_s) < MAX_LAG_S


async def test_long_bodies_are_parsed_beside_the_loop_and_short_ones_on_it() -> None:
    parser = ParserThread(DEFAULT_BOUNDS)
    for body_len, is_beside in ((1 << 14, False), ((1 << 14) + 1, True)):
        thread_id = await parser.run(body_len, threading.get_ident)
        assert (thread_id != threading.get_ident()) is is_beside


_NUM_BODIES = 300
_NUM_CLIENTS = 4
_PATIENCE_S = 15.0
_HUGE_LEN = 3_000_000
_DEEP = 1000

_SAID = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
_TGI = {
    "inputs": "Once upon",
    "parameters": {
        "max_new_tokens": 3,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.5,
        "stop": ["x"],
        "seed": 1,
        "details": True,
        "top_n_tokens": 2,
        "logit_bias": {"5": 1.0},
        "stop_token_ids": [7],
        "grammar": None,
    },
}
_OPENAI = {
    "model": "tgi",
    "max_tokens": 3,
    "temperature": 0.5,
    "n": 1,
    "stop": ["x"],
    "logit_bias": {"5": 1.0},
    "stream_options": None,
}
_ROUTES: dict[str, dict[str, Any]] = {
    "/": _TGI | {"stream": False},
    "/generate": _TGI,
    "/generate_stream": _TGI,
    "/tokenize": _TGI,
    "/invocations": _TGI,
    "/vertex": {"instances": [_TGI]},
    "/chat_tokenize": {"messages": _SAID},
    "/v1/completions": _OPENAI | {"prompt": ["Once", "upon"], "logprobs": 1, "echo": True},
    "/v1/chat/completions": _OPENAI | {"messages": _SAID, "logprobs": True, "top_logprobs": 2},
    "/v1/responses": {
        "model": "tgi",
        "input": [{"role": "user", "content": "Hello"}],
        "store": True,
    },
    "/v1/messages": {"model": "tgi", "max_tokens": 3, "messages": _SAID[1:], "system": "Be brief."},
    "/v1/messages/count_tokens": {"model": "tgi", "messages": _SAID[1:]},
}
_JUNK: Sequence[object] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**70), 10**400, 0.5, -0.0, 1e308),
    *("", "x", "\x00", "\ufeff", "a" * 5000, "\u202e", "5", [], {}, [[]], [None], [{}], [-1]),
    *({"": None}, {"type": "text"}, {"type": []}, [1, "x", None, {}], ["x"] * 300, [2**65]),
)
_RAW: Sequence[bytes] = (
    *(b"", b" ", b"\x00", b"null", b"[]", b'"text"', b"1e999", b"NaN", b"-", b"{", b"}", b"{]"),
    *(b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00", b"{'inputs': 'x'}", b'{"inputs": }', b"{}{}"),
    *(b'{"inputs": "x"', b'{"inputs": "\x01"}', b'{"inputs": Infinity}', gzip.compress(b"{}")),
)

Maker = Callable[[random.Random, dict[str, Any]], bytes]


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a body."""
    items = (
        list(value.items())
        if isinstance(value, dict)
        else list(enumerate(value))
        if isinstance(value, list)
        else []
    )
    return [path, *(place for key, part in items for place in places(part, (*path, key)))]


def replaced(draw: random.Random, body: dict[str, Any], part: object) -> dict[str, Any]:
    """The body with `part` somewhere inside."""
    changed = copy.deepcopy(body)
    path = draw.choice(places(body)[1:])
    inner: Any = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = part
    return changed


def with_junk(draw: random.Random, body: dict[str, Any]) -> bytes:
    for _ in range(draw.randint(1, 3)):
        body = replaced(draw, body, draw.choice(_JUNK))
    return json.dumps(body).encode()


def truncated(draw: random.Random, body: dict[str, Any]) -> bytes:
    text = json.dumps(body).encode()
    return text[: draw.randrange(len(text))]


def flipped(draw: random.Random, body: dict[str, Any]) -> bytes:
    text = bytearray(json.dumps(body).encode())
    for _ in range(draw.randint(1, 4)):
        text[draw.randrange(len(text))] = draw.randrange(256)
    return bytes(text)


def deep(draw: random.Random, body: dict[str, Any]) -> bytes:
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    depth = draw.choice((65, _DEEP, 100_000))
    nest = opening * depth + b"1" + closing * draw.choice((depth, depth - 1, 0))
    return json.dumps(replaced(draw, body, "@@")).encode().replace(b'"@@"', nest)


def surrogates(draw: random.Random, body: dict[str, Any]) -> bytes:
    broken = draw.choice(
        (b'"\\ud800"', b'"\\udc00\\ud800"', b'"\xed\xa0\x80"', b'"\xc3"', b'"\xf5"')
    )
    return json.dumps(replaced(draw, body, "@@")).encode().replace(b'"@@"', broken)


def doubled(draw: random.Random, body: dict[str, Any]) -> bytes:
    key = draw.choice(list(body))
    junk = json.dumps({key: draw.choice(_JUNK)}).encode()
    return json.dumps(body).encode()[:-1] + b"," + junk[1:]


def lacking(draw: random.Random, body: dict[str, Any]) -> bytes:
    gone = draw.choice(list(body))
    return json.dumps({key: part for key, part in body.items() if key != gone}).encode()


def raw(draw: random.Random, body: dict[str, Any]) -> bytes:
    return draw.choice(_RAW)


def huge(draw: random.Random, body: dict[str, Any]) -> bytes:
    return json.dumps(replaced(draw, body, "@@")).encode().replace(b"@@", b"a" * _HUGE_LEN)


_MAKERS: Sequence[Maker] = (
    *(with_junk, with_junk, with_junk, truncated, flipped),
    *(deep, surrogates, doubled, lacking, raw),
)


def is_json(answer: httpx.Response) -> bool:
    """Whether all that was said is JSON: the body, or each event of a stream."""
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
        events = [line.removeprefix("data:").strip() for line in lines]
        return all(isinstance(json.loads(one), dict) for one in events if one != "[DONE]")
    json.loads(answer.content)
    return answer.headers["content-type"].startswith("application/json")


async def test_every_malformed_body_gets_an_answer_in_json_at_once() -> None:
    draw = random.Random(11)
    sent = [
        (path, draw.choice(_MAKERS)(draw, _ROUTES[path]))
        for path in draw.choices(list(_ROUTES), k=_NUM_BODIES - 2 * len(_ROUTES))
    ]
    todo = iter(sent)
    statuses: dict[int, int] = {}
    found: list[str] = []

    async def ask(client: httpx.AsyncClient, path: str, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        begun_s = time.monotonic()
        answer = await client.post(path, content=body, headers=headers)
        took_s = time.monotonic() - begun_s
        statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
        if answer.status_code >= 500 or took_s > _PATIENCE_S or not is_json(answer):
            said = f"{answer.status_code} in {took_s:.2f} s {answer.content[:200]!r}"
            found.append(f"{path} {body[:300]!r} ({len(body)} bytes): {said}")

    async def ask_on(client: httpx.AsyncClient) -> None:
        for path, body in todo:
            await ask(client, path, body)

    hello = [*byte_ids("hi"), EOS_ID]
    shard = FakeShard(script=lambda ids: hello[len(ids) % 3], num_blocks=256)
    async with (
        housing(
            shard, max_concurrent_requests=64, max_body_len=2_000_000, timeouts=PATIENT
        ) as house,
        listening(house.app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        await asyncio.gather(*(ask_on(client) for _ in range(_NUM_CLIENTS)))
        for path, body in _ROUTES.items():
            await ask(client, path, huge(draw, body))
        for path, body in _ROUTES.items():
            # The same routes still serve what is well made.
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, (path, answer.text)
        assert house.rig.batcher.num_streams == 0
    assert not found, f"{len(found)} of {_NUM_BODIES}, such as {found[:5]}"
    assert sum(n for status, n in statuses.items() if 400 <= status < 500) > _NUM_BODIES / 2
