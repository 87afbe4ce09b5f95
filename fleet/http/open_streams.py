"""The streams of one LMTP socket that a model's server has not ended; pure.

The model stays leased while a stream is open. Frames of tokens of version 2 are relayed unread. A
client of version 1 ignores errors after its third token and would wait for ever: from the fourth on
the last token is held back, and if the server dies, it ends the stream with `length`. The client
then sends the longer prompt, which the next server gets.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TOKEN_COMMANDS = frozenset({"GENERATE", "SCORE", "BEAMS"})
_NUM_ERRORS_SEEN = 3


@dataclass(slots=True)
class _Stream:
    command: str
    version: int
    num_relayed: int = 0
    held: dict[str, Any] | None = None

    def is_ended_by(self, token: Mapping[str, Any]) -> bool:
        # In version 2 the last token of a generation is followed by DONE.
        has_reason = token.get("finish_reason") is not None
        return "error" in token or (has_reason and (self.version == 1 or self.command == "SCORE"))

    def hold_back(self, token: dict[str, Any]) -> list[dict[str, Any]]:
        """The tokens to relay now."""
        is_held = self.version == 1 and self.command == "GENERATE"
        if not is_held or self.num_relayed < _NUM_ERRORS_SEEN:
            self.num_relayed += 1
            return [token]
        before, self.held = self.held, token
        return [] if before is None else [before]


class OpenStreams:
    """Owner of the open streams by id, and of the commands that wait for their MSG.

    `is_server_draining`: the server said that it is shutting down.
    """

    def __init__(self) -> None:
        self.is_server_draining = False
        self._streams: dict[int, _Stream] = {}
        self._commands: set[int] = set()

    def __len__(self) -> int:
        return len(self._streams) + len(self._commands)

    def open(self, stream_id: int, command: str, version: int) -> None:
        """A frame is sent to the server, which answers it in this version."""
        if command in TOKEN_COMMANDS:
            # A second one of the same id is refused by the server, and the first goes on.
            self._streams.setdefault(stream_id, _Stream(command, version))
        elif command != "CANCEL":
            self._commands.add(stream_id)

    def relay(self, text: str) -> str | None:
        """The frame for the client in place of one of the server's; None: there is none."""
        command, _, body = text.partition(" ")
        if command == "TOKEN" and self._is_plain(body):
            return text
        # In version 1, JSON may have NaN and infinities.
        sent = json.loads(body)
        objects = [relayed for each in sent for relayed in self._relay(command, each)]
        if objects == sent:
            return text
        return f"{command} {json.dumps(objects)}" if objects else None

    def end_all(self, error: Mapping[str, object]) -> list[tuple[str, dict[str, Any]]]:
        """Frames, as type and object, that end what is open when the server is gone."""
        frames: list[tuple[str, dict[str, Any]]] = [
            ("MSG", {"stream_id": stream_id, **error}) for stream_id in self._commands
        ]
        for stream_id, stream in self._streams.items():
            if stream.held is None:
                frames.append(("TOKEN", {"stream_id": stream_id, **error}))
            else:
                frames.append(("TOKEN", {**stream.held, "finish_reason": "length"}))
        self._commands.clear()
        self._streams.clear()
        return frames

    def _is_plain(self, body: str) -> bool:
        """Whether a frame of tokens ends no stream and holds nothing back."""
        streams = self._streams.values()
        is_unread = all(each.version > 1 and each.command != "SCORE" for each in streams)
        return is_unread and '"error"' not in body

    def _relay(self, command: str, sent: dict[str, Any]) -> list[dict[str, Any]]:
        if "draining" in (sent.get("state"), sent.get("error_type")):
            self.is_server_draining = True
            if command == "SYS":
                return []  # said of the model's server, not of the front
        stream_id: Any = sent.get("stream_id")
        if command == "MSG":
            self._commands.discard(stream_id)
            return [sent]
        stream = self._streams.get(stream_id)
        if stream is None or command == "SYS":
            return [sent]
        if command == "TOKEN" and not stream.is_ended_by(sent):
            return stream.hold_back(sent)
        if command in ("TOKEN", "DONE", "SCORES"):
            del self._streams[stream_id]
        return [sent] if stream.held is None else [stream.held, sent]
