"""What other streams notice of images: the gaps between their tokens, beside them and alone.

    python -m bench.images [--model llava_large] [--rounds 5]

Serves a model of `tests/seeing_checkpoint.py`, of random weights: `llava` is tiny, `llava_large`
has a tower of the size of CLIP's ViT-L/14 at 336 pixels. Two streams generate without a pause. Each
round is a time alone, and two new images of 1024 x 1024 pixels. Prints JSON, in milliseconds.
"""

import asyncio
import base64
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from PIL import Image

from bench.command_line import parser_of
from bench.processes import running, tandem
from bench.sse_client import post_events
from processes.addresses import free_port
from tests import seeing_checkpoint

_STREAMED = b'{"prompt": "Once", "max_tokens": 1900, "ignore_eos": true, "stream": true}'
_ALONE_S = 5.0


async def _stream(url: str, gaps_ms: list[float]) -> None:
    while True:
        last_s = None
        async for _ in post_events(f"{url}/v1/completions", _STREAMED):
            now_s = time.perf_counter()
            gaps_ms += [] if last_s is None else [1000 * (now_s - last_s)]
            last_s = now_s


async def _ask(url: str, seed: int) -> None:
    file = BytesIO()
    noise = random.Random(seed).randbytes(3 << 20)
    Image.frombytes("RGB", (1024, 1024), noise).save(file, "PNG", compress_level=1)
    image_url = "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "image_url", "image_url": image_url}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "stream": True}
    async for _ in post_events(f"{url}/v1/chat/completions", json.dumps(body).encode()):
        pass


async def measure(url: str, num_rounds: int) -> dict[str, float]:
    """The first image, for which parts of the server are loaded, does not count."""
    gaps_ms: list[float] = []
    streams = [asyncio.create_task(_stream(url, gaps_ms)) for _ in range(2)]
    found: dict[str, list[float]] = {"alone": [], "beside": [], "image": []}
    await _ask(url, 0)
    for number in range(1, 2 * num_rounds, 2):
        gaps_ms.clear()
        await asyncio.sleep(_ALONE_S)
        found["alone"] += gaps_ms
        gaps_ms.clear()
        begun_s = time.perf_counter()
        await _ask(url, number)
        await _ask(url, number + 1)
        found["image"].append(500 * (time.perf_counter() - begun_s))
        found["beside"] += gaps_ms
    for task in streams:
        task.cancel()
    p99_ms = {name: statistics.quantiles(found[name], n=100)[98] for name in ("alone", "beside")}
    return {
        **{f"{name}_p50_ms": statistics.median(each) for name, each in found.items()},
        **{f"{name}_p99_ms": each for name, each in p99_ms.items()},
        "p99_ratio": p99_ms["beside"] / p99_ms["alone"],
        "num_beside": len(found["beside"]),
    }


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", choices=("llava", "llava_large"), default="llava_large")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        seeing_checkpoint.save(args.model, Path(folder))
        server = tandem(Path(folder), free_port(), ())
        with running(server):
            found = asyncio.run(measure(server.target.url, args.rounds))
    sys.stdout.write(json.dumps({name: round(each, 2) for name, each in found.items()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
