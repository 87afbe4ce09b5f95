"""The lines of a batch's input file: each a request, all of them checked before any is computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

_RESPONSES = "/v1/responses"
ENDPOINTS = ("/v1/chat/completions", "/v1/completions", _RESPONSES)
MAX_LINES = 50_000
MAX_LINE_LEN = 1 << 20
_MAX_ID_LEN = 512
_MAX_ERRORS = 20


@dataclass(frozen=True, slots=True)
class Line:
    """`body` is a request to the endpoint, in JSON; `number` that of the line in its file."""

    number: int
    custom_id: str
    body: bytes


def batch_error(code: str, message: str, line: int | None = None) -> dict[str, Any]:
    """Why a batch ends without its answers, as OpenAI says it."""
    return {"code": code, "message": message, "line": line, "param": None}


class LineCheck:
    """Makes lines of a file's pieces, and collects what is wrong with them, as OpenAI says it."""

    def __init__(self, endpoint: str) -> None:
        self.errors: list[dict[str, Any]] = []
        self.seen: set[str] = set()
        self._endpoint = endpoint
        self._rest = b""
        self._number = 0

    def read(self, piece: bytes) -> list[Line]:
        """The good lines that end in a piece; a line break behind the last piece ends the last."""
        *texts, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > MAX_LINE_LEN:
            texts.append(self._rest)
            self._rest = b""
        return [*self._checked(texts)]

    def _checked(self, texts: list[bytes]) -> Iterator[Line]:
        for text in texts:
            self._number += 1
            try:
                if text.strip() and len(self.errors) < _MAX_ERRORS:
                    yield self._line(text)
            except ValueError as error:
                self.errors.append(batch_error("invalid_line", str(error), self._number))

    def _line(self, text: bytes) -> Line:
        """Raises ValueError with the rule that the line breaks."""
        if len(text) > MAX_LINE_LEN:
            raise ValueError(f"a line may have at most {MAX_LINE_LEN} bytes")
        if len(self.seen) == MAX_LINES:
            raise ValueError(f"a batch may have at most {MAX_LINES} lines")
        match orjson.loads(text):
            case {"custom_id": str(custom_id), "method": "POST", "url": url, "body": dict(body)}:
                pass
            case _:
                raise ValueError("a line must be an object of custom_id, method POST, url and body")
        if url != self._endpoint:
            raise ValueError(f"`url` must be the batch's endpoint, {self._endpoint}")
        if body.get("stream") or body.get("background"):
            raise ValueError("`stream` and `background` have no use in a batch")
        if not 0 < len(custom_id) <= _MAX_ID_LEN or custom_id in self.seen:
            rule = f"must be there once, and have at most {_MAX_ID_LEN} characters"
            raise ValueError(f"`custom_id` {rule}. Given: {custom_id[:60]!r}")
        self.seen.add(custom_id)
        if url == _RESPONSES:
            # Nobody can ask for it again; kept, it would displace those of which somebody may.
            body = {**body, "store": False}
        return Line(self._number, custom_id, orjson.dumps(body))
