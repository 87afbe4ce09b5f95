"""The open streams of one upstream socket, told apart by what passes through; pure.

It reads the server's frames just far enough to know which streams have ended. In version 2 a frame
of tokens that holds no error goes on as it came. A client of version 1 sees an error only among
the first objects of a stream; so, as the router does, the last token is kept back from the fourth
on, and if the server dies that one ends the stream by "length": the client asks again, with the
longer prompt, and is served by the server that is loaded anew.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from router.http.lmtp.frames import write_frame

_NUM_SEEN = 3
_WITH_TOKENS = frozenset({"GENERATE", "SCORE", "BEAMS", "BEST"})


@dataclass(slots=True)
class _Stream:
    command: str
    num_passed: int = 0
    kept: dict[str, Any] | None = None


class StreamBook:
    """By stream id, in the version that the client speaks.

    `is_leaving`: the server said that it takes nothing more.
    """

    def __init__(self) -> None:
        self.version = 1
        self.is_leaving = False
        self._streams: dict[int, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, stream_id: int) -> bool:
        return stream_id in self._streams

    def ids(self) -> list[int]:
        """Of the open streams."""
        return list(self._streams)

    def open(self, stream_id: int, command: str) -> None:
        """A stream that the server will be, or was, asked for."""
        self._streams[stream_id] = _Stream(command)

    def command(self, stream_id: int) -> str:
        """What an open stream was asked by."""
        return self._streams[stream_id].command

    def passes(self, text: str, gone: Mapping[str, object] | None = None) -> str | None:
        """The frame to hand to the client for one of the server's; None: nothing.

        `gone`: what a client is told in the place of a server's word that it takes nothing more.
        """
        command, _, rest = text.partition(" ")
        if command == "TOKEN" and self._is_plain(rest):
            return text
        objects = _read(rest)
        if command == "SYS":
            kept = [each for each in objects if each.get("state") != "draining"]
            self.is_leaving |= len(kept) < len(objects)
            return _write(command, kept) if kept else None
        if any(_is_refusal(each) for each in objects):
            self.is_leaving = True
            if gone is not None:
                objects = [{**each, **gone} if _is_refusal(each) else each for each in objects]
                text = _write(command, objects)
        if command == "TOKEN" and self.version == 1:
            passed = [each for one in objects for each in self._pass_first_version(one)]
            return _write(command, passed) if passed else None
        for each in objects:
            self._note(command, each)
        return text

    def breaks_off(self, stream_id: int, error: dict[str, object]) -> tuple[str, dict[str, Any]]:
        """The stream's last words when its server is gone: a type and an object."""
        stream = self._streams.pop(stream_id)
        if stream.kept is not None:
            return "TOKEN", {**stream.kept, "finish_reason": "length"}
        kind = "TOKEN" if stream.command in _WITH_TOKENS else "MSG"
        return kind, {"stream_id": stream_id, **error}

    def _is_plain(self, rest: str) -> bool:
        if self.version == 1 or '"error"' in rest:
            return False
        return all(stream.command != "SCORE" for stream in self._streams.values())

    def _note(self, command: str, told: dict[str, Any]) -> None:
        stream_id = told.get("stream_id")
        stream = self._streams.get(stream_id) if isinstance(stream_id, int) else None
        if stream is None or not isinstance(stream_id, int):
            return
        if command == "MSG":
            is_end = stream.command not in _WITH_TOKENS
        elif command == "TOKEN":
            # In version 2 a DONE follows the last token of a generation.
            is_scored = stream.command == "SCORE" and told.get("finish_reason") is not None
            is_end = "error" in told or is_scored
        else:
            is_end = command in ("DONE", "SCORES")
        if is_end:
            del self._streams[stream_id]

    def _pass_first_version(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        stream = self._streams.get(told.get("stream_id", ""))
        if stream is None:
            return [told]
        if "error" in told or told.get("finish_reason") is not None:
            del self._streams[told["stream_id"]]
            return [told] if stream.kept is None else [stream.kept, told]
        if stream.num_passed < _NUM_SEEN or stream.command != "GENERATE":
            stream.num_passed += 1
            return [told]
        before, stream.kept = stream.kept, told
        return [] if before is None else [before]


def _is_refusal(told: dict[str, Any]) -> bool:
    return told.get("error_type") == "draining"


def _read(rest: str) -> list[dict[str, Any]]:
    try:
        told = orjson.loads(rest)
    except orjson.JSONDecodeError:
        # Version 1 has numbers that only Python's JSON knows.
        told = json.loads(rest)
    return [each for each in told if isinstance(each, dict)]


def _write(command: str, objects: list[dict[str, Any]]) -> str:
    return write_frame(command, [json.dumps(each) for each in objects])
