"""The open streams of one upstream socket, told apart by what passes through; pure.

It reads the server's frames just far enough to know which streams have ended. In version 2 a frame
of tokens that holds no error goes on as it came. A client of version 1 sees an error only among
the first objects of a stream; so, as the router does, the last token is kept back from the fourth
on, and if the server dies that one ends the stream by "length": the client asks again, with the
longer prompt, and is served by the server that is loaded anew.

A stream keeps the version in which it was asked for, as it does at the server: a HELLO changes what
comes after it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from router.http.lmtp.frames import error_fields, write_frame
from router.http.server.errors import HttpError

_NUM_SEEN = 3
_WITH_TOKENS = frozenset({"GENERATE", "SCORE", "BEAMS"})
_NO_TEXT: Mapping[str, object] = MappingProxyType({"text": "", "tail": ""})
_NO_BEAMS: Mapping[str, object] = MappingProxyType({"beams": [], "ended": [], "dropped": []})
# What a DONE says of a stream that has not begun. A SCORE ends by an error: it has no parts.
_NOTHING_MADE: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"GENERATE": _NO_TEXT, "BEAMS": _NO_BEAMS}
)
_NO_USAGE = MappingProxyType({"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0})


@dataclass(slots=True)
class _Stream:
    command: str
    version: int
    num_passed: int = 0
    kept: dict[str, Any] | None = None


class StreamBook:
    """By stream id. `version`: the client's; that of the streams that it opens from now on.

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
        self._streams[stream_id] = _Stream(command, self.version)

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
            return _write(command, kept) if kept and self.version > 1 else None
        if any(_is_refusal(each) for each in objects):
            self.is_leaving = True
            if gone is not None:
                objects = [{**each, **gone} if _is_refusal(each) else each for each in objects]
                text = _write(command, objects)
        if command == "TOKEN" and any(map(self._is_first_version, objects)):
            passed = [each for one in objects for each in self._pass_token(one)]
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

    def cancels(self, stream_id: int) -> tuple[str, dict[str, Any]]:
        """The same of a stream that its client ends before a server knows of it."""
        stream = self._streams[stream_id]
        nothing = _NOTHING_MADE.get(stream.command)
        if nothing is None or stream.version == 1:
            error = HttpError(499, "cancelled", "the stream was cancelled")
            return self.breaks_off(stream_id, error_fields(error))
        del self._streams[stream_id]
        done = {"stream_id": stream_id, "finish_reason": "cancelled", **nothing}
        return "DONE", {**done, "usage": dict(_NO_USAGE)}

    def _is_plain(self, rest: str) -> bool:
        if '"error"' in rest:
            return False
        streams = self._streams.values()
        return all(each.version > 1 and each.command != "SCORE" for each in streams)

    def _is_first_version(self, told: dict[str, Any]) -> bool:
        stream = self._streams.get(told.get("stream_id", ""))
        return stream is not None and stream.version == 1

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

    def _pass_token(self, told: dict[str, Any]) -> list[dict[str, Any]]:
        stream = self._streams.get(told.get("stream_id", ""))
        if stream is None or stream.version > 1:
            self._note("TOKEN", told)
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
