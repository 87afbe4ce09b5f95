"""A limit on computing that a pause of the process does not use up.

What is looked for under one takes a small part of it, but Python may clean up its memory meanwhile,
for longer than the whole limit. So the limit begins anew once, at half its length.
"""

from time import thread_time


class TimeLimit:
    """Of so many seconds of this thread's computing from now."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = thread_time() + seconds
        self._grace_s = seconds / 2

    def is_over(self) -> bool:
        """Whether it has ended; to be asked after every step."""
        if thread_time() <= self._ends_s:
            return False
        if not self._grace_s:
            return True
        self._ends_s = thread_time() + self._grace_s
        self._grace_s = 0.0
        return False
