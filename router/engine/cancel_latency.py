"""How long what a client leaves behind stays: from its leaving until nothing of it is anywhere."""

from collections.abc import Callable


class Departures:
    """Requests whose clients left, and when. Owned by the batcher.

    `has_left` tells whether neither shards nor books hold anything of a request any more; `gone`
    hears how many seconds that took.
    """

    def __init__(self, has_left: Callable[[int], bool], gone: Callable[[float], None]) -> None:
        self._has_left = has_left
        self._gone = gone
        self._since_s: dict[int, float] = {}

    def began(self, request_id: int, since_s: float, now_s: float) -> None:
        """A request was cancelled; one that never ran is gone at once."""
        if self._has_left(request_id):
            self._gone(now_s - since_s)
        else:
            self._since_s[request_id] = since_s

    def look(self, now_s: float) -> None:
        """The shards were told what to drop, have answered, or have begun anew."""
        for request_id in [each for each in self._since_s if self._has_left(each)]:
            self._gone(now_s - self._since_s.pop(request_id))
