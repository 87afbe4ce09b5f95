"""The slots of the server, one for each sequence that waits or runs: who takes and gives them.

A slot is taken by an open stream, or by a group between two of its streams.
"""

from collections.abc import Callable, Sequence, Sized

from router.engine.admission import Admission
from router.engine.progress import Progress
from router.engine.stream import Stream
from router.engine.stream_groups import StreamGroup, StreamGroups, Texts
from router.request.errors import Refused
from router.request.request import GenerateRequest
from router.telemetry.step_observer import StepObserver


class Slots:
    """Counts them for the door. `groups` and `streams` are the batcher's."""

    def __init__(
        self,
        admission: Admission,
        progress: Progress,
        observer: StepObserver,
        streams: Sized,
        groups: StreamGroups,
        clock: Callable[[], float],
    ) -> None:
        self._admission = admission
        self._progress = progress
        self._observer = observer
        self._streams = streams
        self._groups = groups
        self._clock = clock

    def take(self, requests: Sequence[GenerateRequest]) -> None:
        """One for each. Raises Refused; InvalidRequest for more than there are."""
        now_s = self._clock()
        broken_s = self._progress.broken_s(now_s)
        try:
            self._admission.enter(now_s, self.num_taken, requests, broken_s)
        except Refused as error:
            self._observer.rejected(error)
            raise

    def free(self, num_slots: int, *, is_good: bool) -> None:
        """So many are not taken any more, by a good end or another."""
        num_finished = num_slots if is_good else 0
        self._admission.left(self._clock(), self.num_taken, num_finished)

    def open_group(
        self, request: GenerateRequest, num_slots: int, advance: Callable[[], None]
    ) -> StreamGroup:
        """Takes slots for so many requests like this one, to be kept. Raises as `take`."""
        self.take([request] * num_slots)
        return self._groups.open(num_slots, advance)

    def submit_in(
        self, group: StreamGroup, requests: Sequence[GenerateRequest], texts: Texts = None
    ) -> list[Stream]:
        """Streams in a group's slots. Raises InvalidRequest, ServerStopped."""
        return self._groups.submit(group, requests, texts)

    def close_group(self, group: StreamGroup, *, is_good: bool) -> None:
        """Gives its slots back, once its streams have ended. Nothing if that was done before."""
        if self._groups.close(group):
            self.free(group.num_slots, is_good=is_good)

    @property
    def num_taken(self) -> int:
        """By all."""
        return len(self._streams) + self._groups.num_idle_slots
