"""One beam search in the batcher: its asks become streams, their ends become results.

    open -> BeamSearch asks -> streams in the group's slots -> all have ended -> results -> asks ...

The batcher calls it between two steps, so that the beams miss no step while there are others. Only
reports and the end wait for the task that reads `next`. It knows no HTTP.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from proto.contract import FinishReason
from router.engine.batcher import Batcher
from router.engine.beam_search.requests import (
    OutputTexts,
    output_before,
    request_of,
    result_of,
)
from router.engine.beam_search.search import BeamSearch, Search
from router.engine.beam_search.types import (
    Ask,
    AskResult,
    BeamGroup,
    ProbeTokens,
    SearchEnd,
    SearchOutcome,
)
from router.engine.recovery import bug_error
from router.engine.stream import Stream
from router.engine.stream_groups import StreamGroup
from router.request.errors import RouterError
from router.request.request import Finished
from router.text.output_text import OutputText

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BeamUsage:
    """Tokens of a search: of the beams at its start, of these in the prefix cache, generated."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0


class BeamRun:
    """Owner of a search's streams. The caller awaits `next` until the end, and closes the run.

    `report_s`: seconds between two reports; None: no reports.
    """

    def __init__(
        self, group: BeamGroup, texts: OutputTexts, batcher: Batcher, report_s: float | None
    ) -> None:
        self.group = group
        self.search = BeamSearch(group, texts)
        self.num_steps = 0
        self.usage = BeamUsage()
        self._texts = texts
        self._batcher = batcher
        self._report_s = report_s
        self._search_steps: Search[SearchOutcome] = self.search.run()
        self._asks: Sequence[Ask] = ()
        self._results: list[AskResult] = []
        # The streams of the asks without a result.
        self._streams: list[Stream] = []
        self._reported_s = time.monotonic()
        self._has_started = False
        self._outcome: SearchOutcome | None = None
        self._failure: RouterError | None = None
        self._changed = asyncio.Event()
        # Last, since it may raise.
        self._slots: StreamGroup = batcher.groups.open(
            group.width, group.holes[0].request.key, self._advance
        )

    @property
    def place(self) -> int | None:
        """The place in the queue of its first step, from 1; None once that has started."""
        if self.num_steps or not self._streams:
            return None
        return self._batcher.place(self._streams[0])

    async def next(self) -> SearchOutcome | None:
        """The outcome, or None when a report is due. Raises the RouterError of a failed search."""
        if not self._has_started:
            self._has_started = True
            self._guarded(self._start)
        await self._changed.wait()
        self._changed.clear()
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def close(self) -> None:
        """Ends the search; its blocks are free after the current step. May be called again."""
        for stream in self._streams:
            self._batcher.cancel(stream)
        self._batcher.groups.close(self._slots, is_good=self._outcome is not None)

    # Between two steps

    def _advance(self) -> None:
        self._guarded(self._take_results)

    def _guarded(self, act: Callable[[], None]) -> None:
        """An exception ends this search and nothing else."""
        try:
            act()
        except RouterError as error:
            self._failure = error
        except Exception as error:
            trace_id = self.group.holes[0].request.trace_id
            _logger.error("request_id=%s failed by a bug", trace_id, exc_info=error)
            self._failure = bug_error(error)
        if self._failure is not None or self._outcome is not None:
            self.close()
            self._changed.set()

    def _start(self) -> None:
        self._resume(lambda: next(self._search_steps))

    def _go_on(self) -> None:
        results, self._results = self._results, []
        self._resume(lambda: self._search_steps.send(results))

    def _resume(self, step: Callable[[], Sequence[Ask]]) -> None:
        try:
            self._asks = step()
        except StopIteration as stop:
            self._outcome = stop.value
            return
        self._request_report()
        self._submit()

    def _request_report(self) -> None:
        if self._report_s is None or self.num_steps == 0:
            return
        now_s = time.monotonic()
        if now_s - self._reported_s >= self._report_s:
            self._reported_s = now_s
            self._changed.set()

    def _submit(self) -> None:
        """Submits the next asks, as many as there are slots."""
        done = len(self._results)
        wave = self._asks[done : done + self._slots.num_slots]
        requests = [request_of(ask, self.group.holes[ask.beam.hole]) for ask in wave]
        texts = [self._text_behind(ask) for ask in wave]
        self._streams = self._batcher.groups.submit(self._slots, requests, texts)

    def _text_behind(self, ask: Ask) -> OutputText:
        return self._texts.behind(self.group.holes[ask.beam.hole], output_before(ask))

    def _take_results(self) -> None:
        """The results of the asks whose streams have ended. Raises the RouterError of a failure."""
        ends = [stream.end for stream in self._streams]
        if any(isinstance(end, Finished) and end.reason is FinishReason.DEADLINE for end in ends):
            self._outcome = self.search.outcome(SearchEnd.DEADLINE)
            return
        asks = self._asks[len(self._results) :]
        for ask, stream in zip(asks, self._streams, strict=False):
            result = result_of(ask, stream, self.group.end_token_ids)
            self._results.append(result)
            self._count(ask, stream)
        if len(self._results) < len(self._asks):
            self._submit()
            return
        self.num_steps += any(isinstance(ask, ProbeTokens) for ask in self._asks)
        self._go_on()

    def _count(self, ask: Ask, stream: Stream) -> None:
        usage = self.usage
        if self.num_steps == 0:
            num_prompt_tokens = len(stream.request.prompt_ids) + len(stream.request.output_ids)
            usage = replace(
                usage,
                num_prompt_tokens=usage.num_prompt_tokens + num_prompt_tokens,
                num_cached_tokens=usage.num_cached_tokens + stream.cached_len,
            )
        if isinstance(ask, ProbeTokens):
            usage = replace(usage, num_output_tokens=usage.num_output_tokens + 1)
        self.usage = usage
