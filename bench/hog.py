"""One key that asks for all it can get, beside one that asks now and then: what the latter waits.

    python -m bench.hog [--hogs 64] [--seconds 60] [--prompt-len 256] [--alike]

Starts `launcher serve` with a file of two keys. The light key asks once in half a second, at first
alone, then while `--hogs` connections of the other key ask again and again for 200 tokens
behind 300. Prints JSON: the light key's times to the first token of both, in milliseconds, their
ratios, and the tokens per second of the hog. `--alike`: both have one key, so that arrival alone
decides. Exit code 1 when the ratio of the 99th percentiles is over 2, or a request failed.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from bench.command_line import parser_of
from bench.load import Load, random_prompts
from bench.processes import running, tandem
from bench.sse_client import post_events
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_EVERY_S = 0.5
_MAX_RATIO = 2.0
_LIGHT_TOKENS, _HOG_TOKENS, _HOG_PROMPT_LEN = 8, 200, 300


class _Keys:
    """Both keys' requests to one server."""

    def __init__(self, url: str, prompts: Sequence[str], hog_prompts: Sequence[str]) -> None:
        self._url = url
        self._prompts = prompts
        self._hog_prompts = hog_prompts
        self.num_hog_tokens = 0

    async def light(self, key: str, seconds: float) -> list[float]:
        """One request after the other, at even times; the seconds to each one's first token."""
        asking: list[asyncio.Task[float]] = []
        for number in range(int(seconds / _EVERY_S)):
            prompt = self._prompts[number % len(self._prompts)]
            asking.append(asyncio.create_task(self._first_token_s(key, f"{number} {prompt}")))
            await asyncio.sleep(_EVERY_S)
        return await asyncio.gather(*asking)

    async def hog(self, key: str) -> None:
        """Asks again and again, until it is cancelled."""
        chance = random.Random()
        while True:
            prompt = f"{chance.random()} {chance.choice(self._hog_prompts)}"
            async for _ in self._events(key, prompt, _HOG_TOKENS):
                self.num_hog_tokens += 1

    async def _first_token_s(self, key: str, prompt: str) -> float:
        begun_s, first_s = time.monotonic(), None
        async for _ in self._events(key, prompt, _LIGHT_TOKENS):
            first_s = first_s or time.monotonic() - begun_s
        if first_s is None:
            raise RuntimeError("a request ended without a token")
        return first_s

    def _events(self, key: str, prompt: str, num_tokens: int) -> AsyncIterator[bytes]:
        parameters = {"max_new_tokens": num_tokens, "ignore_eos": True}
        body = json.dumps({"inputs": prompt, "parameters": parameters}).encode()
        headers = {"Authorization": f"Bearer {key}"}
        return post_events(f"{self._url}/generate_stream", body, headers)


async def _measure(url: str, args: argparse.Namespace) -> dict[str, object]:
    tokenizer = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))
    light = Load(num_requests=32, prompt_len=args.prompt_len, output_len=1, concurrency=1)
    heavy = Load(num_requests=64, prompt_len=_HOG_PROMPT_LEN, output_len=1, concurrency=1)
    keys = _Keys(url, random_prompts(tokenizer, light), random_prompts(tokenizer, heavy))
    await keys.light("light", 2.0)
    alone_s = await keys.light("light", args.seconds)
    key = "light" if args.alike else "hog"
    hogs = [asyncio.create_task(keys.hog(key)) for _ in range(args.hogs)]
    await asyncio.sleep(5.0)
    keys.num_hog_tokens, begun_s = 0, time.monotonic()
    beside_s = await keys.light("light", args.seconds)
    tokens_per_s = keys.num_hog_tokens / (time.monotonic() - begun_s)
    for hog in hogs:
        hog.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.gather(*hogs)
    rows = {
        name: [round(1e3 * float(np.percentile(times_s, share)), 1) for share in (50, 99)]
        for name, times_s in (("alone", alone_s), ("beside", beside_s))
    }
    ratios = [round(rows["beside"][index] / rows["alone"][index], 2) for index in (0, 1)]
    return {
        "first_token_ms_p50_p99": rows,
        "ratio_p50_p99": ratios,
        "hog_tokens_per_s": round(tokens_per_s),
        "requests": len(beside_s),
    }


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, default=BUNDLED_MODEL)
    parser.add_argument("--hogs", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--prompt-len", type=int, default=256)
    parser.add_argument("--alike", action="store_true")
    parser.add_argument("--flags", default="", help="further flags of the server, by spaces")
    args = parser.parse_args(argv)
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.toml")
        keys.write_text(
            "".join(
                f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n'
                for name in ("hog", "light")
            )
        )
        flags = (f"--api-key-file={keys}", *args.flags.split())
        with running(tandem(args.model, port, flags)):
            row = asyncio.run(_measure(f"http://127.0.0.1:{port}", args))
    sys.stdout.write(json.dumps(row) + "\n")
    ratios = row["ratio_p50_p99"]
    assert isinstance(ratios, list)
    return int(ratios[1] > _MAX_RATIO)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
