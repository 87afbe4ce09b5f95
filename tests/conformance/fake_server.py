"""The router as a process over a fake shard that takes orders: a server for clients' tests.

    python -m tests.conformance.fake_server [flags of python -m router]

Says {"url", "model", "router_pid"} in one line when it is ready. Then each line of stdin is an
order, an object answered by `ok`:

    {}                       do everything right again
    {"delay_s": 0.2}         take that long for each step
    {"fails": "Prefill"}     fail the next call of that method, and those that replay its request
    {"row_error": "..."}     fail one sequence of the next step
    {"says": "..."}          answer every prompt with this text

It ends when stdin does.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import grpc

from tests.byte_tokenizer import EOS_ID, byte_ids, save_byte_tokenizer
from tests.conformance.fake_name import MODEL_ID
from tests.fake_script import Faults, Script, letters
from tests.fakes import FakeShard, serving
from tests.router.process import serving_http

_CHANCE_OF_EOS = 1 / 48
# Larger than a test needs: the flag `--max-total-tokens` is what bounds requests.
_MAX_TOTAL_LEN = 1 << 16


def letters_to_an_end(token_ids: Sequence[int]) -> int:
    """A small letter that depends on the whole prefix, and now and then the end."""
    digest = crc32(bytes(token_id % 251 for token_id in token_ids))
    return EOS_ID if digest < _CHANCE_OF_EOS * 2**32 else letters(token_ids)


def answering(answer: str) -> Script:
    """`answer` behind any prompt that does not end with a part of its beginning, then the end."""
    answer_ids = byte_ids(answer)

    def script(token_ids: Sequence[int]) -> int:
        said = max(n for n in range(len(answer_ids) + 1) if ends_with(token_ids, answer_ids[:n]))
        return answer_ids[said] if said < len(answer_ids) else EOS_ID

    return script


def ends_with(token_ids: Sequence[int], end_ids: Sequence[int]) -> bool:
    return list(token_ids[len(token_ids) - len(end_ids) :]) == end_ids


def obey(shard: FakeShard, order: dict[str, object]) -> None:
    """One order; what was ordered before is over."""
    shard.script = answering(str(order["says"])) if "says" in order else letters_to_an_end
    faults = Faults(delay_s=float(str(order.get("delay_s", 0.0))))
    if "fails" in order:
        faults.fail_for_good(str(order["fails"]), grpc.StatusCode.INTERNAL, "as ordered")
    if "row_error" in order:
        faults.row_errors[None] = str(order["row_error"])
    shard.faults = faults


async def serve(flags: Sequence[str]) -> None:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    shard = FakeShard(
        script=letters_to_an_end,
        model_id=MODEL_ID,
        num_blocks=4096,
        block_size=16,
        max_total_len=_MAX_TOTAL_LEN,
        checks_blocks=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        # A name that is the same everywhere, since /info and /v1/models tell of it.
        os.chdir(folder)
        tokenizer = save_byte_tokenizer(Path("tokenizer"))
        named = ("--served-model-name", MODEL_ID, "--max-total-tokens", "512", *flags)
        async with (
            serving(shard) as address,
            serving_http(address, tokenizer, *named) as router,
        ):
            url = f"http://127.0.0.1:{router.port}"
            _say(json.dumps({"url": url, "model": MODEL_ID, "router_pid": router.pid}))
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                obey(shard, json.loads(line))
                _say("ok")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1:]))
