"""Streams whose readers do not keep up: no more is made for them than they will soon read.

    reader takes  ->  events are few  ->  the sequence draws
    reader waits  ->  events are many  ->  it sits the steps out, in its place and with its blocks

So a slow reader costs the others next to nothing, and an unread answer has a bounded length. Who
does not read at all is cut by the connection's own rule.
"""

from collections.abc import Callable

from router.engine.stream import Stream

MANY_UNREAD = 64


class Pacing:
    """Which streams are paused. Owned by the batcher; `pause` is the scheduler's."""

    def __init__(self, pause: Callable[[int, bool], None]) -> None:
        self._pause = pause
        self._paused: dict[int, Stream] = {}

    def __len__(self) -> int:
        return len(self._paused)

    def look_at(self, stream: Stream) -> None:
        """It has got events, and goes on."""
        if stream.num_unread >= MANY_UNREAD and stream.request_id not in self._paused:
            self._paused[stream.request_id] = stream
            self._pause(stream.request_id, True)
            # What comes next is not late.
            stream.last_token_s = None

    def resume(self) -> None:
        """Those whose readers took what was there go on."""
        read = [key for key, stream in self._paused.items() if stream.num_unread < MANY_UNREAD]
        for request_id in read:
            del self._paused[request_id]
            self._pause(request_id, False)

    def left(self, stream: Stream) -> None:
        """It has its end."""
        self._paused.pop(stream.request_id, None)
