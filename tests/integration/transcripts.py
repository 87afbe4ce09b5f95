"""Transcripts of LMTP in a document: what they say, and the same said anew.

    python -m tests.integration.transcripts docs/lmtp.md     writes the server's lines again

In a block of the language `lmtp` a line of `> ` is a client's frame and one of `< ` a server's; a
block is one socket. Frames may hold several objects, and how many is a matter of time: objects are
compared, not frames.
"""

import asyncio
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from tests.integration.server import launched

Object = tuple[str, dict[str, Any]]
_BLOCK = re.compile(r"^```lmtp\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class RequestRecord:
    """A client's frame and the objects that answer it."""

    frame: str
    answers: tuple[Object, ...]


def transcripts(text: str) -> list[list[RequestRecord]]:
    """The blocks of a document, each a socket."""
    return [_exchanges(block) for block in _BLOCK.findall(text)]


def _exchanges(block: str) -> list[RequestRecord]:
    exchanges: list[RequestRecord] = []
    for line in block.splitlines():
        if line.startswith("> "):
            exchanges.append(RequestRecord(line[2:], ()))
        elif line.startswith("< "):
            last = exchanges.pop()
            exchanges.append(RequestRecord(last.frame, last.answers + tuple(objects(line[2:]))))
    return exchanges


def objects(frame: str) -> list[Object]:
    """What a server's frame holds."""
    command, _, body = frame.partition(" ")
    return [(command, each) for each in json.loads(body)]


async def replay(port: int, exchanges: Sequence[RequestRecord]) -> list[list[Object]]:
    """What a server answers to each frame: as many objects as the transcript has."""
    said: list[list[Object]] = []
    heard: list[Object] = []
    async with connect(f"ws://127.0.0.1:{port}/lmtp", max_size=None) as socket:
        for exchange in exchanges:
            await socket.send(exchange.frame)
            async with asyncio.timeout(_PATIENCE_S):
                while not _is_answered(heard, exchange):
                    heard += objects(str(await socket.recv()))
            said.append(heard)
            heard = []
    return said


def _is_answered(heard: Sequence[Object], exchange: RequestRecord) -> bool:
    if exchange.answers:
        return len(heard) >= len(exchange.answers)
    # Nothing is written yet: to the end of the stream.
    if not heard:
        return exchange.frame.startswith("CANCEL")
    command, last = heard[-1]
    is_first_version = command == "TOKEN" and "text" not in last
    return (
        command != "TOKEN"
        or "error" in last
        or (is_first_version and bool(last.get("finish_reason")))
    )


def is_alike(ours: object, theirs: object) -> bool:
    """Equal, but for what another machine's arithmetic makes of a number."""
    if isinstance(ours, float) or isinstance(theirs, float):
        assert isinstance(ours, int | float)
        assert isinstance(theirs, int | float)
        return math.isclose(ours, theirs, rel_tol=0.1, abs_tol=0.3)
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(is_alike(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(is_alike, ours, theirs))
    return ours == theirs


def _rewritten(text: str, said: Sequence[Sequence[Sequence[Object]]]) -> str:
    blocks = iter(zip(transcripts(text), said, strict=True))

    def write(_: re.Match[str]) -> str:
        exchanges, answers = next(blocks)
        lines = []
        for exchange, told in zip(exchanges, answers, strict=True):
            lines.append(f"> {exchange.frame}")
            lines += [f"< {command} {json.dumps([each])}" for command, each in told]
        return "```lmtp\n" + "\n".join(lines) + "\n```"

    return _BLOCK.sub(write, text)


def main(path: str) -> None:
    """Writes a document's transcripts anew."""
    document = Path(path)
    text = document.read_text()
    unanswered = [[RequestRecord(each.frame, ()) for each in block] for block in transcripts(text)]
    with launched("--served-model-name", "demo", "--dtype", "float32") as server:
        said = [asyncio.run(replay(server.port, block)) for block in unanswered]
    document.write_text(_rewritten(text, said))


if __name__ == "__main__":
    main(sys.argv[1])
