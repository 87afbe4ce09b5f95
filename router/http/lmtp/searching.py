"""What BEAMS and BEST have in common: a group's way through the server, to the last object.

fields -> group -> BeamRun -> BEAMS* DONE
"""

from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from router.engine.beam_search.run import BeamRun, BeamUsage
from router.engine.beam_search.texts import OutputTexts
from router.engine.beam_search.types import Grouped, Place, Reason
from router.http.lmtp.beam_holes import HoleReader
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.failures import error_fields
from router.http.lmtp.frames import Frame
from router.http.lmtp.notices import Queued
from router.http.lmtp.objects import as_json
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.stream_encoder import Said
from router.http.lmtp.work import Notify, Say
from router.http.request_record import RequestRecord
from router.http.server.errors import HttpError
from router.request.errors import InvalidRequest, RouterError


class _Outcome(Protocol):
    @property
    def reason(self) -> Reason: ...


GroupT = TypeVar("GroupT", bound=Grouped)
OutcomeT = TypeVar("OutcomeT", bound=_Outcome)


class Searching(ABC, Generic[GroupT, OutcomeT]):
    """One group. `notify` takes what is to be said of it as a system message.

    `_dead`: what is in holes that nothing can fill, and why; no search is needed to know it.
    """

    def __init__(
        self,
        services: LmtpServices,
        buffers: Buffers,
        record: RequestRecord,
        stream_id: int,
        notify: Notify,
    ) -> None:
        self._services = services
        self._holes = HoleReader(services, buffers, record)
        self._exchange = record
        self._stream_id = stream_id
        self._notify = notify
        self._run: BeamRun[GroupT, OutcomeT] | None = None
        self._dead: list[tuple[Place, RouterError | None]] = []

    async def run(self, frame: Frame, say: Say) -> list[Said]:
        """Answers the frame; its outcome is the end. Raises RouterError, HttpError for `fail`."""
        started = await self._start(frame)
        if not isinstance(started, tuple):
            return self._done(started)
        run, texts = started
        self._run = run
        queued = Queued(self._stream_id, lambda: run.place, self._notify)
        try:
            while (outcome := await run.next()) is None:
                queued.begun()
                await say([("BEAMS", self._report(run, texts))])
            queued.begun()
            return self._done(outcome)
        finally:
            queued.close()
            run.close()
            self._note(run)

    def fail(self, error: RouterError | HttpError) -> list[Said]:
        """An error object."""
        return [("TOKEN", as_json({"stream_id": self._stream_id, **error_fields(error)}))]

    def cancelled(self) -> list[Said]:
        """Where the search stood; nowhere, if it had not begun."""
        if self._run is None:
            return self._done(self._nothing(Reason.CANCELLED))
        return self._done(self._run.search.outcome(Reason.CANCELLED))

    @abstractmethod
    async def _start(
        self, frame: Frame
    ) -> tuple[BeamRun[GroupT, OutcomeT], OutputTexts] | OutcomeT:
        """The search of the frame's group; or its outcome, where there is nothing to search."""

    @abstractmethod
    def _nothing(self, reason: Reason) -> OutcomeT:
        """The outcome of no search."""

    @abstractmethod
    def _report(self, run: BeamRun[GroupT, OutcomeT], texts: OutputTexts) -> str:
        """The object that tells where the search stands."""

    @abstractmethod
    def _last(self, outcome: OutcomeT, usage: BeamUsage) -> str:
        """The last object, with those that were dead before the search."""

    def _require_width(self, width: int) -> None:
        most = self._services.limits.max_beams
        if width > most:
            message = f"`width` must be at most {most} (--max-beams). Given: {width}"
            raise InvalidRequest(message, "width")

    def _done(self, outcome: OutcomeT) -> list[Said]:
        usage = BeamUsage() if self._run is None else self._run.usage
        told = self._last(outcome, usage)
        self._exchange.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        return [("DONE", told)]

    def _note(self, run: BeamRun[GroupT, OutcomeT]) -> None:
        self._exchange.num_cached_tokens = run.usage.num_cached_tokens
        self._exchange.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)
