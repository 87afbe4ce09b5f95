"""`python -m router` as a process, and an HTTP client that shows every byte, for tests."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_READY = re.compile(r"ready at http://127\.0\.0\.1:(\d+)")
PATIENCE_S = 20.0


@dataclass
class RouterProcess:
    """A running router; `log` collects what it writes to stderr."""

    process: asyncio.subprocess.Process
    log: list[str]
    reading: "asyncio.Future[None]"
    port: int = 0

    @property
    def pid(self) -> int:
        """For signals and /proc."""
        return self.process.pid

    async def ended(self) -> int:
        """Its exit code; all of the log is there then."""
        code = await asyncio.wait_for(self.process.wait(), PATIENCE_S)
        await self.reading
        return code

    async def until_logged(self, words: str) -> str:
        """The first line with these words."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for line in self.log:
                    if words in line:
                        return line
                assert not self.reading.done(), "".join(self.log)
                await asyncio.sleep(0.01)


@asynccontextmanager
async def launched(*flags: str, within: Sequence[str] = ()) -> AsyncIterator[RouterProcess]:
    """A router that may still be starting; killed with the block if it is still there.

    within: a command that runs it; then `process` is that command's
    """
    process = await asyncio.create_subprocess_exec(
        *within,
        sys.executable,
        "-m",
        "router",
        "--port",
        "0",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    log: list[str] = []

    async def read() -> None:
        assert process.stderr is not None
        while line := await process.stderr.readline():
            log.append(line.decode())

    router = RouterProcess(process, log, asyncio.ensure_future(read()))
    try:
        yield router
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await router.reading


@asynccontextmanager
async def serving_http(
    address: str, tokenizer: Path, *flags: str, within: Sequence[str] = ()
) -> AsyncIterator[RouterProcess]:
    """A router that is ready; see `launched`."""
    named = ("--master-shard-uds-path", address, "--tokenizer-name", str(tokenizer))
    async with launched(*named, *flags, within=within) as router:
        found = _READY.search(await router.until_logged("ready at"))
        assert found is not None
        router.port = int(found[1])
        yield router


@dataclass
class RequestRecord:
    """One request that was sent; its answer is read as it comes."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: bytes

    @property
    def status(self) -> int:
        """Of HTTP."""
        return int(self.head.split()[1])

    async def events(self) -> list[dict[str, object]]:
        """Whatever is left of a stream of events."""
        body = await asyncio.wait_for(self.reader.read(), PATIENCE_S)
        self.writer.close()
        found = re.findall(rb"^data: (\{.*\})\r?$", body, re.MULTILINE)
        return [json.loads(payload) for payload in found]

    async def until(self, words: bytes) -> None:
        """Reads on to these bytes."""
        await asyncio.wait_for(self.reader.readuntil(words), PATIENCE_S)


async def ask(port: int, method: str, path: str, body: object = None) -> RequestRecord:
    """Sends one request on a connection of its own and reads the head of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    writer.write(head.encode() + payload)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
    return RequestRecord(reader, writer, answer)


async def status_of(port: int, method: str, path: str, body: object = None) -> int:
    """The status of a whole answer."""
    record = await ask(port, method, path, body)
    await record.events()
    return record.status


async def stream(port: int, prompt: str, max_new_tokens: int) -> RequestRecord:
    """A POST to /generate_stream."""
    body = {"inputs": prompt, "parameters": {"max_new_tokens": max_new_tokens}}
    return await ask(port, "POST", "/generate_stream", body)
