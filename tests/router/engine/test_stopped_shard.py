"""A shard whose process is stopped (SIGSTOP) neither answers nor fails: only timeouts show it."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic

import pytest

from tests.byte_tokenizer import save_byte_tokenizer
from tests.router.process import PATIENCE_S, ask, serving_http, status_of, stream

pytestmark = pytest.mark.slow

_SHARD = """
import asyncio, sys
from tests.fakes import FakeShard

async def main():
    shard = FakeShard(num_blocks=4096, checks_blocks=False)
    shard.faults.delay_s = 0.02
    await shard.start(f"unix:{sys.argv[1]}")
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
# What the probes promise with their defaults.
SHOWS_WITHIN_S = 5.0


@asynccontextmanager
async def shard_process(socket: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A fake shard in a process of its own, which can be stopped."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _SHARD, str(socket), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), PATIENCE_S) == b"listening\n"
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def seconds_until(port: int, path: str, status: int) -> float:
    """How long it takes until a probe says so."""
    began_s = monotonic()
    while await status_of(port, "GET", path) != status:
        assert monotonic() - began_s < PATIENCE_S, f"{path} is not {status}"
        await asyncio.sleep(0.05)
    return monotonic() - began_s


async def test_it_shows_within_five_seconds_with_and_without_work(tmp_path: Path) -> None:
    tokenizer = save_byte_tokenizer(tmp_path / "tokenizer")
    async with (
        shard_process(tmp_path / "shard-0") as shard,
        serving_http(str(tmp_path / "shard-0"), tokenizer) as router,
    ):
        shard.send_signal(signal.SIGSTOP)
        assert await seconds_until(router.port, "/health/ready", 503) < SHOWS_WITHIN_S
        assert await status_of(router.port, "GET", "/health/progress") == 503
        assert await status_of(router.port, "GET", "/health/live") == 200
        shard.send_signal(signal.SIGCONT)
        assert await seconds_until(router.port, "/health/ready", 200) < SHOWS_WITHIN_S

        running = await stream(router.port, "Once", 10_000)
        await running.until(b"data:")
        shard.send_signal(signal.SIGSTOP)
        assert await seconds_until(router.port, "/health/progress", 503) < SHOWS_WITHIN_S
        probe = await ask(router.port, "GET", "/health/progress")
        body = await asyncio.wait_for(probe.reader.read(), PATIENCE_S)
        probe.writer.close()
        assert b"has been under way for" in body
        assert await status_of(router.port, "GET", "/health/live") == 200

        shard.send_signal(signal.SIGCONT)
        assert await seconds_until(router.port, "/health/progress", 200) < SHOWS_WITHIN_S
        await running.until(b"data:")
        running.writer.close()
