"""What a stream's task does, whatever it is about."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from router.http.lmtp.frames import Frame
from router.http.lmtp.stream_encoder import Said
from router.http.server.errors import HttpError
from router.request.errors import RouterError

Say = Callable[[Iterable[Said]], Awaitable[None]]

Notify = Callable[[Mapping[str, object]], None]


class Work(Protocol):
    """Answers one frame with objects; the last of them ends the stream.

    What it has handed to `say` is said before its end, though it be cancelled meanwhile.
    """

    async def run(self, frame: Frame, say: Say) -> list[Said]:
        """To the end, which is for the caller to say. Raises RouterError, HttpError for `fail`."""

    def fail(self, error: RouterError | HttpError) -> list[Said]:
        """The bad end."""

    def cancelled(self) -> list[Said]:
        """The end that the client asked for."""
