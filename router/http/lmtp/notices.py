"""System messages: queued, running, draining.

A client of version 1 knows none and gets none.
"""

import asyncio
from collections.abc import Callable, Mapping

from router.http.lmtp.streams import Notify

# Sooner nobody wonders.
_FIRST_LOOK_S = 0.2
_LAST_GAP_S = 2.0


def draining() -> Mapping[str, object]:
    """Of the server: nothing new is taken, what runs may finish."""
    message = "the server stops: nothing new is taken, what runs may finish"
    return {"stream_id": None, "state": "draining", "message": message}


class Queued:
    """Tells of one request that it waits, and where, and that it begins.

    `place`: 1 for who is next; None once it has begun. A stream that starts soon gets no message.
    """

    def __init__(self, stream_id: int, place: Callable[[], int | None], notify: Notify) -> None:
        self._stream_id = stream_id
        self._place = place
        self._notify = notify
        self._told: int | None = None
        self._gap_s = _FIRST_LOOK_S
        self._timer = self._later()

    def begun(self) -> None:
        """It starts; call this before its first token is sent."""
        self._timer.cancel()
        if self._told is not None:
            self._told = None
            self._notify({"stream_id": self._stream_id, "state": "running"})

    def close(self) -> None:
        """No more messages."""
        self._timer.cancel()

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._gap_s, self._look)

    def _look(self) -> None:
        place = self._place()
        if place is None:
            self.begun()
            return
        if place != self._told:
            self._told = place
            before = "nothing is" if place == 1 else f"{place - 1} are"
            message = f"the request waits, {before} before it"
            self._notify(
                {
                    "stream_id": self._stream_id,
                    "state": "queued",
                    "place": place,
                    "message": message,
                }
            )
        self._gap_s = min(2 * self._gap_s, _LAST_GAP_S)
        self._timer = self._later()
