"""What draft tokens bring, by how much of an answer stands in its prompt already.

    python -m bench.speculation /tmp/llama-chain [--concurrency 1 8] [--rounds 3]

Makes the model of `bench.make_model` with weights such that each token has one successor, whatever
came before it; its steps cost what those of the other one cost. A prompt is a text of this model in
which one token of every N is another one, and the answer is that text without these changes: as if
a file were written anew. Two servers run, with drafts and with `--speculate 0`, and one is at work.
Prints a row for each N: tokens a second, their ratio as medians of the rounds, tokens for each
step, and the share of drafts that was accepted. Exit code 1 when an answer differs.

    python -m bench.speculation SmolLM2-135M-Instruct.Q4_1.gguf --extract

The same of JSON that a chat model extracts from texts, as a schema says.
"""

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch

from bench.command_line import parser_of
from bench.make_model import VOCAB_SIZE, config, model, tokenizer
from bench.processes import Server, running, tandem
from processes.addresses import free_port

_NUM_SPECIAL = 3
_TEXT_LEN = 256
_COUNTERS = ("tandem_draft_tokens", "tandem_accepted_tokens", "tandem_output_tokens")
# One token of so many is changed; None: the prompt is of another text.
_WORKLOADS = (None, 8, 16, 32, _TEXT_LEN)


_TEXTS = (
    "John Smith is 42 years old and lives in Berlin. He works as a software engineer at Contoso"
    " Software and his office is at Friedrichstrasse 123.",
    "Invoice 2024-117 from Acme Tools Limited, 12 Harbour Road, Portsmouth: three cordless drills"
    " at 129.50 each and two ladders at 89.00 each, due on 30 November 2024.",
    "The Mercury Theatre in Colchester will perform 'The Importance of Being Earnest' by Oscar"
    " Wilde from Tuesday 4 March to Saturday 15 March, tickets from 18 pounds.",
    "Maria Gonzalez, head of research at the Institute of Marine Biology in Lisbon, said the survey"
    " of 1,204 sea turtles near the Azores was the largest of its kind.",
)
_NAMES = {"type": "array", "items": {"type": "string"}, "maxItems": 3}
_EXTRACT = {
    "type": "object",
    "properties": {
        "people": _NAMES,
        "places": _NAMES,
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["people", "places", "summary"],
    "additionalProperties": False,
}


def extraction(text: str) -> dict[str, Any]:
    """A request for JSON with what a text says."""
    wish = f"Extract the people, the places and a summary from this text as JSON.\n\n{text}"
    return {
        "messages": [{"role": "user", "content": wish}],
        "max_tokens": 200,
        "temperature": 0,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "extract", "schema": _EXTRACT},
        },
    }


def successors() -> list[int]:
    """The token after each one: one long cycle of all but the special ones."""
    cycle = list(range(_NUM_SPECIAL, VOCAB_SIZE))
    random.Random(5).shuffle(cycle)
    following = list(range(VOCAB_SIZE))
    for token_id, successor in zip(cycle, cycle[1:] + cycle[:1], strict=True):
        following[token_id] = successor
    return following


def make_chain_model(folder: Path) -> None:
    built = model(config(tie_word_embeddings=False))
    with torch.inference_mode():
        for layer in built.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        head = built.lm_head.weight
        head[torch.tensor(successors())] = built.model.embed_tokens.weight.clone()
    built.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def prompt_ids(draw: random.Random, every: int | None, following: Sequence[int]) -> tuple[int, ...]:
    """A text with one token of `every` changed (None: all of them), and the token before it."""
    before = token_id = draw.randrange(_NUM_SPECIAL, VOCAB_SIZE)
    text = []
    for place in range(_TEXT_LEN):
        token_id = following[token_id]
        is_changed = every is None or (place % every == every // 2 and every < _TEXT_LEN)
        text.append(draw.randrange(_NUM_SPECIAL, VOCAB_SIZE) if is_changed else token_id)
    return (*text, before)


def repetition(prompt: tuple[int, ...]) -> dict[str, Any]:
    """A request for what follows a prompt."""
    return {"prompt": prompt, "max_tokens": _TEXT_LEN, "temperature": 0, "ignore_eos": True}


async def _answers(
    url: str, bodies: Sequence[dict[str, Any]], concurrency: int
) -> list[tuple[str, int]]:
    """Each answer's text, and its number of tokens."""
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=300.0) as client:

        async def one(body: dict[str, Any]) -> tuple[str, int]:
            is_chat = "messages" in body
            async with gate:
                path = "/v1/chat/completions" if is_chat else "/v1/completions"
                answer = (await client.post(path, json=body)).raise_for_status().json()
            choice = answer["choices"][0]
            text = choice["message"]["content"] if is_chat else choice["text"]
            return text, answer["usage"]["completion_tokens"]

        return await asyncio.gather(*map(one, bodies))


def _counters(url: str) -> list[float]:
    page = httpx.get(f"{url}/metrics").text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[:1] != "#")
    return [float(values[f"{name}_total"]) for name in _COUNTERS]


@dataclass(slots=True)
class Row:
    """The figures of one workload at one concurrency."""

    plain: list[float]
    drafted: list[float]
    num_drafts: float = 0.0
    num_accepted: float = 0.0
    num_tokens: float = 0.0

    def line(self, what: str, concurrency: int) -> str:
        """As in a table of Markdown."""
        ratio = statistics.median(b / a for a, b in zip(self.plain, self.drafted, strict=True))
        per_step = self.num_tokens / (self.num_tokens - self.num_accepted)
        accepted = f"{self.num_accepted / self.num_drafts:.2f}" if self.num_drafts else "-"
        rates = f"{statistics.median(self.plain):.0f} | {statistics.median(self.drafted):.0f}"
        return f"| {what} | {concurrency} | {rates} | {ratio:.2f} | {per_step:.2f} | {accepted} |"


Bodies = Callable[[int, int], list[dict[str, Any]]]


def _extractions(concurrency: int, number: int) -> list[dict[str, Any]]:
    return [extraction(text) for text in _TEXTS]


def _repetitions(every: int | None, concurrency: int, number: int) -> list[dict[str, Any]]:
    draw = random.Random(f"{every} {concurrency} {number}")
    following = successors()
    return [repetition(prompt_ids(draw, every, following)) for _ in range(2 * concurrency)]


def _measure(servers: Sequence[Server], bodies_of: Bodies, concurrency: int, rounds: int) -> Row:
    row = Row([], [])
    urls = [server.target.url for server in servers]
    before = _counters(urls[1])
    for number in range(rounds):
        bodies = bodies_of(concurrency, number)
        answers = []
        # Whoever comes first differs from round to round.
        for place in (0, 1) if number % 2 else (1, 0):
            began_s = time.perf_counter()
            answers.append(asyncio.run(_answers(urls[place], bodies, concurrency)))
            took_s = time.perf_counter() - began_s
            num_tokens = sum(count for _, count in answers[-1])
            (row.plain, row.drafted)[place].append(num_tokens / took_s)
        if answers[0] != answers[1]:
            raise SystemExit(f"answers differ with drafts: {answers}")
    after = _counters(urls[1])
    row.num_drafts, row.num_accepted, row.num_tokens = (
        new - old for old, new in zip(before, after, strict=True)
    )
    return row


def main(argv: Sequence[str]) -> int:
    args = _parse(argv)
    if not args.extract and not (args.folder / "config.json").exists():
        make_chain_model(args.folder)
    plain = tandem(args.folder, free_port(), ("--speculate", "0"))
    drafting = tandem(args.folder, free_port(), ("--speculate", str(args.speculate)))
    print("| of the answer, the prompt has | at a time | tok/s without | with | ratio ", end="")
    print("| tokens a step | accepted |\n" + "|---" * 7 + "|")
    servers = (plain, drafting)
    with running(plain), running(drafting):
        for concurrency in args.concurrency:
            if args.extract:
                row = _measure(servers, _extractions, concurrency, args.rounds)
                print(row.line("what is extracted from it", concurrency), flush=True)
                continue
            for every in _WORKLOADS:
                row = _measure(servers, partial(_repetitions, every), concurrency, args.rounds)
                what = {None: "nothing of it", _TEXT_LEN: "all of it"}.get(every)
                print(row.line(what or f"all but 1 of {every}", concurrency), flush=True)
    return 0


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--extract", action="store_true", help="JSON from texts, by a chat model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--speculate", type=int, default=7)
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
