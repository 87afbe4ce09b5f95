"""A thousand random requests, each asked for whole and as a stream: the text is the same.

The tokens are bytes of characters that take one to four of them, combine, join, or break off.
"""

import asyncio
import random
import unicodedata
from collections.abc import Sequence
from typing import Any
from zlib import crc32

import httpx
import pytest

from tests.asked_twice import Asked, streamed_text, whole_text
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening
from tests.router.rig import PATIENT

pytestmark = pytest.mark.slow

_NUM_REQUESTS = 1000
_NUM_CLIENTS = 8
_CHARACTERS = ("a", "q", " ", "é", "e\u0301", "ß", "你", "好", "한", "ก็", "🦊", "👩\u200d🚀", "🇫🇷")
_BYTES = [text.encode() for text in _CHARACTERS]


def babel(token_ids: Sequence[int]) -> int:
    """A byte that mostly goes on with the character under way, and now and then breaks it off."""
    written = bytes(token_id - NUM_SPECIAL for token_id in token_ids if token_id >= NUM_SPECIAL)
    digest = crc32(written)
    if digest % 61 == 0:
        return EOS_ID
    if digest % 23 == 0:
        return NUM_SPECIAL + digest % 256
    for length in range(1, 8):
        for text in _BYTES:
            if length < len(text) and written.endswith(text[:length]) and written[-1] > 127:
                return NUM_SPECIAL + text[length]
    return NUM_SPECIAL + _BYTES[digest % len(_BYTES)][0]


def random_request(draw: random.Random) -> Asked:
    """A prompt, ways to draw, and stops that are likely to come."""
    prompt = "".join(draw.choices(_CHARACTERS, k=draw.randint(1, 8)))
    stop = draw.choice(([], [draw.choice(_CHARACTERS)], ["qa", draw.choice(_CHARACTERS) * 2]))
    common: dict[str, Any] = {
        "seed": draw.randrange(2**32),
        "stop": stop,
        "repetition_penalty": draw.choice((None, 1.3)),
        "frequency_penalty": draw.choice((None, 0.5)),
        "presence_penalty": draw.choice((None, 0.7)),
        "temperature": draw.choice((None, 0.7, 3.0)),
        "include_stop_str_in_output": draw.random() < 0.5,
    }
    num_tokens = draw.randint(1, 60)
    if draw.random() < 0.4:
        parameters = common | {"max_new_tokens": num_tokens}
        return Asked.natively({"inputs": prompt, "parameters": parameters})
    common |= {"max_tokens": num_tokens}
    if draw.random() < 0.5:
        path = "/v1/completions"
        said: dict[str, Any] = {"prompt": prompt}
        logprobs: object = draw.choice((None, 0))
    else:
        path = "/v1/chat/completions"
        said = {"messages": [{"role": "user", "content": prompt}]}
        logprobs = draw.choice((None, True))
    return Asked.openly(path, common | said | {"logprobs": logprobs})


async def test_what_is_streamed_is_what_is_answered() -> None:
    draw = random.Random(5)
    todo = iter([random_request(draw) for _ in range(_NUM_REQUESTS)])
    found: list[str] = []
    texts: list[str] = []

    async def ask(client: httpx.AsyncClient) -> None:
        for asked in todo:
            whole = await whole_text(client, asked)
            streamed = await streamed_text(client, asked)
            texts.append(whole)
            if whole != streamed:
                found.append(f"{asked}: {whole!r} but {streamed!r}")

    shard = FakeShard(script=babel, num_blocks=256)
    async with housing(shard, timeouts=PATIENT) as house, listening(house.app) as port:
        url = f"http://127.0.0.1:{port}"
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await asyncio.gather(*(ask(client) for _ in range(_NUM_CLIENTS)))
    assert not found, f"{len(found)} differ, such as {found[:3]}"
    joined = "".join(texts)
    # The dice must have thrown what this is about: characters of one to four bytes, marks that
    # combine, and broken ones.
    assert {len(character.encode()) for character in set(joined) - {"\ufffd"}} == {1, 2, 3, 4}
    assert any(unicodedata.combining(character) for character in joined)
    assert "\ufffd" in joined
    assert len(joined) > 5 * _NUM_REQUESTS
