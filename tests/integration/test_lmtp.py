"""LMTP over a whole server: the same answers as over HTTP, whatever comes beside them, and what
docs/lmtp.md shows."""

import asyncio
import math
from pathlib import Path
from typing import Any

import pytest

from launcher import BUNDLED_MODEL
from router.text.tokenizer import Tokenizer
from tests.integration.server import RunningServer, metric
from tests.integration.transcripts import is_alike, replay, transcripts
from tests.router.http.lmtp.talking import talking

pytestmark = pytest.mark.slow

PROMPTS = ("Once upon a time", "The old man said", "Question: 2 + 2", "In a small town", "A fox")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(BUNDLED_MODEL)


def generated(server: RunningServer, prompt: str, **parameters: Any) -> str:
    body = {"inputs": prompt, "parameters": {"max_new_tokens": 24, **parameters}}
    answer = server.http.post("/generate", json=body, timeout=60).json()
    text = answer["generated_text"]
    assert isinstance(text, str)
    return text


async def test_many_streams_answer_as_http_does(server: RunningServer) -> None:
    sampling = {"temperature": 0.9, "seed": 11}
    async with talking(server.port) as talk:
        await talk.hello()
        for index, prompt in enumerate(PROMPTS * 2):
            drawn = sampling if index >= len(PROMPTS) else {}
            await talk.send("GENERATE", stream_id=index, text=prompt, max_tokens=24, **drawn)
        texts: dict[int, str] = {}
        while len(texts) < 2 * len(PROMPTS):
            command, told = await talk.hear()
            if command == "DONE":
                texts[told["stream_id"]] = told["text"]

    for index, prompt in enumerate(PROMPTS):
        assert texts[index] == generated(server, prompt)
        assert texts[index + len(PROMPTS)] == generated(server, prompt, **sampling)


async def test_log_probabilities_are_those_after_a_mask(
    server: RunningServer, tokenizer: Tokenizer
) -> None:
    prompt = tokenizer.encode("Pick: ")
    allowed = [tokenizer.encode(letter, add_special_tokens=False)[0] for letter in "cd"]
    few = {str(token_id): 100 for token_id in allowed}
    many = {str(i): -100 for i in range(tokenizer.vocab_size) if i not in allowed}
    async with talking(server.port, "/") as talk:
        answers = [
            (
                await talk.ask(
                    "GENERATE",
                    index,
                    prompt=prompt,
                    max_tokens=3,
                    top_logprobs=2,
                    logit_bias=bias,
                    temperature=temperature,
                )
            )
            for index, (bias, temperature) in enumerate([(few, 0.0), (many, 0.0), (few, 1.0)])
        ]

    for said in answers:
        for _, told in said:
            assert told["token"] in allowed
            assert {int(key) for key in told["top_logprobs"]} == set(allowed)
            total = sum(math.exp(value) for value in told["top_logprobs"].values())
            assert total == pytest.approx(1.0, abs=1e-3)
    firsts = [said[0][1]["top_logprobs"] for said in answers]
    for token_id in map(str, allowed):
        assert firsts[0][token_id] == pytest.approx(firsts[1][token_id], abs=0.02)
        assert firsts[0][token_id] == pytest.approx(firsts[2][token_id], abs=0.02)


async def test_scores_are_those_of_either_form(server: RunningServer, tokenizer: Tokenizer) -> None:
    values = (" there was a fox", " time", "x")
    async with talking(server.port) as talk:
        flat = [
            await talk.ask(
                "SCORE",
                index,
                prompt=tokenizer.encode("Once upon a"),
                scored=tokenizer.encode(value, add_special_tokens=False),
            )
            for index, value in enumerate(values)
        ]
        await talk.hello()
        many = await talk.ask("SCORE", 9, text="Once upon a", scored=list(values))

    for said, scored in zip(flat, many[0][1]["scores"], strict=True):
        assert [told["token"] for _, told in said] == scored["tokens"]
        assert [told["logprob"] for _, told in said] == pytest.approx(scored["logprobs"], abs=1e-6)
    assert len(many[0][1]["scores"][1]["tokens"]) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.8, "seed": 3},
        {"constraint": {"type": "regex", "value": "[a-z ]{12,40}"}, "temperature": 1.0, "seed": 4},
        {"repetition_penalty": 1.3, "stop": [" the "]},
    ],
)
async def test_a_stream_taken_up_again_anywhere_is_the_uncut_one(
    server: RunningServer, fields: dict[str, Any]
) -> None:
    request = {"text": "Once upon a time", "max_tokens": 20, **fields}
    async with talking(server.port) as talk:
        await talk.hello()
        whole = await talk.ask("GENERATE", 1, **request)
        tokens = [told["token"] for command, told in whole if command == "TOKEN"]
        for cut in (1, 3, len(tokens) - 1):
            rest = await talk.ask("GENERATE", 2, **request, output=tokens[:cut])
            again = [told["token"] for command, told in rest if command == "TOKEN"]
            assert again == tokens[cut:]
            assert rest[-1][1]["finish_reason"] == whole[-1][1]["finish_reason"]


async def test_dropped_sockets_leave_no_block_taken(server: RunningServer) -> None:
    async def drop(index: int) -> None:
        async with talking(server.port) as talk:
            await talk.hello()
            for stream_id in range(4):
                await talk.send(
                    "GENERATE",
                    stream_id=stream_id,
                    text=PROMPTS[stream_id],
                    max_tokens=200,
                    ignore_eos=True,
                )
            for _ in range(index * 3):
                await talk.hear()
            talk.socket.transport.abort()

    await asyncio.gather(*(drop(index) for index in range(8)))
    for _ in range(600):
        if metric(server, "tandem_kv_blocks_used") == metric(server, "tandem_sockets") == 0:
            break
        await asyncio.sleep(0.05)

    assert metric(server, "tandem_kv_blocks_used") == 0
    assert metric(server, "tandem_socket_streams") == 0


DOCUMENT = Path(__file__).parents[2] / "docs" / "lmtp.md"


async def test_the_transcripts_of_the_document_are_what_the_server_says(
    server: RunningServer,
) -> None:
    blocks = transcripts(DOCUMENT.read_text())
    said = [await replay(server.port, block) for block in blocks]

    assert sum(len(block) for block in blocks) > 15
    for block, answers in zip(blocks, said, strict=True):
        for exchange, told in zip(block, answers, strict=True):
            assert [command for command, _ in told] == [c for c, _ in exchange.answers]
            for (_, ours), (_, theirs) in zip(exchange.answers, told, strict=True):
                assert is_alike(ours, theirs), (exchange.frame, ours, theirs)
