"""Random requests to a real model, each asked for whole and as a stream: the text is the same.

The thousand with a scripted shard are in tests/router/http; here penalties and seeds are real.
"""

import random
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from launcher import BUNDLED_MODEL
from tests.asked_twice import Asked, streamed_text, whole_text
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

_NUM_REQUESTS = 15
# Of one to four bytes each, composed and decomposed, joined and flagged.
_CHARACTERS = ("a", " ", "é", "e\u0301", "ß", "你", "好", "한", "ก็", "🦊", "👩\u200d🚀", "🇫🇷")


class Dice:
    """Draws requests."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))

    def request(self) -> Asked:
        """A prompt, ways to draw, and stops that are likely to come."""
        draw = self._draw
        prompt = "".join(draw.choices(_CHARACTERS, k=draw.randint(1, 12)))
        wanted = draw.sample(_CHARACTERS, 3)
        common: dict[str, Any] = {
            "seed": draw.randrange(2**32),
            "stop": draw.choice(([], [draw.choice(wanted)], ["e", draw.choice(wanted) * 2])),
            "repetition_penalty": draw.choice((None, 1.3)),
            "frequency_penalty": draw.choice((None, 0.5)),
            "presence_penalty": draw.choice((None, 0.7)),
            "temperature": draw.choice((None, 0.7, 1.0, 3.0)),
            "logit_bias": self._leaning_to(wanted),
        }
        num_tokens = draw.randint(1, 40)
        if draw.random() < 0.5:
            parameters: dict[str, Any] = common | {"max_new_tokens": num_tokens}
            parameters["do_sample"] = True
            parameters["include_stop_str_in_output"] = draw.random() < 0.7
            body: dict[str, Any] = {"inputs": prompt, "parameters": parameters}
            return Asked.natively(body)
        body = common | {"max_tokens": num_tokens, "prompt": prompt}
        if draw.random() < 0.5:
            body["logprobs"] = 1
        return Asked.openly("/v1/completions", body)

    def _leaning_to(self, characters: list[str]) -> dict[str, float] | None:
        """A bias to the pieces of some characters, so that whole ones and broken ones come."""
        if self._draw.random() < 0.2:
            return None
        some = characters[: self._draw.randint(1, 3)]
        ids = [i for text in some for i in self._tokenizer.encode(text).ids]
        return {str(token_id): self._draw.uniform(10, 25) for token_id in ids}


async def differences(url: str, requests: list[Asked]) -> tuple[list[str], list[str]]:
    """What differs, and all the texts."""
    found: list[str] = []
    texts: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        for asked in requests:
            whole = await whole_text(client, asked)
            streamed = await streamed_text(client, asked)
            texts.append(whole)
            if whole != streamed:
                found.append(f"{asked.body}: {whole!r} but {streamed!r}")
    return found, texts


async def test_what_is_streamed_is_what_is_answered(server: RunningServer) -> None:
    dice = Dice(seed=5)
    found, texts = await differences(server.url, [dice.request() for _ in range(_NUM_REQUESTS)])
    assert not found, f"{len(found)} differ, such as {found[:3]}"
    joined = "".join(texts)
    # What this is about: whole characters of several bytes, and broken ones.
    assert any(len(character.encode()) > 1 for character in set(joined) - {"\ufffd"})
    assert "\ufffd" in joined
