"""The slow-reader rule: how much may wait for a client that does not take it, and how long.

A connection holds at most `HIGH_LEN` bytes that its client has not taken, and one piece more;
whoever has more to say to it waits. The client is too slow when

* `HIGH_LEN` bytes waited, and `timeout_s` later there were still more than `LOW_LEN` of them; or
* an answer was complete, and `timeout_s` later a part of it still waited.

Both count from when they began and are not put off by progress, so that a byte now and then saves
nobody. The kernel's share is bounded by `listening.py`.
"""

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HIGH_LEN = 16_384
LOW_LEN = 4_096
PIECE_LEN = 16_384


class Outflow:
    """What one connection still has to take. Tells `too_slow`, once, and leaves the rest to it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.WriteTransport,
        timeout_s: float,
        too_slow: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._timeout_s = timeout_s
        self._too_slow = too_slow
        self._full: asyncio.TimerHandle | None = None
        self._complete: asyncio.TimerHandle | None = None
        transport.set_write_buffer_limits(high=HIGH_LEN, low=LOW_LEN)

    @property
    def num_unsent(self) -> int:
        """Bytes that wait."""
        return self._transport.get_write_buffer_size()

    def fill(self) -> None:
        """`HIGH_LEN` is reached."""
        if self._full is None:
            self._full = self._loop.call_later(self._timeout_s, self._tell)

    def ease(self) -> None:
        """`LOW_LEN` is reached again."""
        if self._full is not None:
            self._full.cancel()
            self._full = None

    def begin(self) -> None:
        """An answer begins; what is left of the one before counts as its part."""
        if self._complete is not None:
            self._complete.cancel()
            self._complete = None

    def complete(self) -> None:
        """An answer was handed over to its last byte."""
        self.begin()
        if self.num_unsent:
            self._complete = self._loop.call_later(self._timeout_s, self._check_rest)

    def close(self) -> None:
        """The connection is gone."""
        self.ease()
        self.begin()

    def _check_rest(self) -> None:
        if self.num_unsent:
            self._tell()

    def _tell(self) -> None:
        self.close()
        self._too_slow()


class Pieces:
    """Hands large bodies on in pieces, so that the next one waits for the client too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""

        async def send_pieces(message: Message) -> None:
            body = message.get("body", b"")
            if len(body) <= PIECE_LEN:
                await send(message)
                return
            for start in range(0, len(body), PIECE_LEN):
                stop = start + PIECE_LEN
                more_body = message.get("more_body", False) or stop < len(body)
                piece = {**message, "body": body[start:stop], "more_body": more_body}
                await send(piece)

        await self._app(scope, receive, send_pieces)
