"""A limit on CPU time that a pause for garbage collection does not use up.

A search takes a small part of its limit, but a garbage collection may take longer than all of it.
So the limit restarts once, with half its length.
"""

from time import thread_time


class TimeLimit:
    """So many CPU seconds of this thread from now on."""

    def __init__(self, seconds: float) -> None:
        self._ends_s = thread_time() + seconds
        self._grace_s = seconds / 2

    def is_over(self) -> bool:
        """Whether the time is used up; call it after every step."""
        if thread_time() <= self._ends_s:
            return False
        if not self._grace_s:
            return True
        self._ends_s = thread_time() + self._grace_s
        self._grace_s = 0.0
        return False
