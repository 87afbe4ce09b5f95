"""Responses that are made without their client: running, cancelled, and read while they grow.

    create -> Job.run: EventStream -> ResponseEncoder -> the job's log -> any reader, at any time
                                           |
                                           +-> ResponseStore, at the end

A job runs within the request that created it, whose answer the client has long before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from router.http.event_log import EventLog, Reader, read_out, split_events
from router.http.responses.reply import Output, Reply
from router.http.server.body import end
from router.http.sse import EVENT_HEADERS, EventStream
from router.request.request import Event

# Some 5000 tokens.
_MAX_LOG_LEN = 1 << 20
MAX_ENDED = 32


class Job:
    """One response in the making. `keep` stores it, with its status, when it has ended.

    `log` has its events if its client wants to read them as a stream.
    """

    def __init__(
        self, reply: Reply, output: Output, keep: Callable[[dict[str, Any], str], None]
    ) -> None:
        self._reply = reply
        self._output = output
        self._store = keep
        self._is_kept = False
        self._is_cancelled = asyncio.Event()
        self._ended = asyncio.Event()
        self.log = EventLog(max_len=_MAX_LOG_LEN, waits=False) if reply.body.stream else None

    @property
    def is_running(self) -> bool:
        """Whether it is neither stored nor forgotten yet."""
        return not self._ended.is_set()

    async def run(self, stream: EventStream[Event]) -> None:
        """Makes the response, to its end or until it is cancelled."""
        try:
            await stream({"type": "http"}, self._receive, self._send)
            if not self._is_kept:
                self.keep(self.fields("cancelled"), "cancelled")
        except Exception:
            self.keep(self._reply.failed("a bug of the server ended it"), "failed")
            raise
        finally:
            self._ended.set()
            if self.log is not None:
                self.log.close(is_complete=True)

    def keep(self, response: dict[str, Any], status: str) -> None:
        """Stores the response as it ended, once: one that is cancelled behind its end has ended."""
        if not self._is_kept:
            self._is_kept = True
            self._store(response, status)

    def fields(self, status: str = "in_progress") -> dict[str, Any]:
        """The response as far as it is made."""
        of_items = status if status == "in_progress" else "incomplete"
        output = self._output.fields(of_items) if self._output.has_begun else []
        return self._reply.unfinished(status, output)

    async def cancel(self) -> None:
        """Ends it; what there is of it is stored."""
        self._is_cancelled.set()
        await self._ended.wait()

    async def _receive(self) -> Message:
        await self._is_cancelled.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.log is not None and message["type"] == "http.response.body":
            self.log.append(split_events(message["body"]))
            await self.log.until_taken()


class Jobs:
    """The responses that are made in the background, and the last ones that were streamed.

    Owned by the routes of Responses. An owner sees its own alone.
    """

    def __init__(self) -> None:
        self._jobs: OrderedDict[tuple[bytes, str], Job] = OrderedDict()

    def add(self, owner: bytes, response_id: str, job: Job) -> None:
        """A new one."""
        self._jobs[owner, response_id] = job
        ended = [key for key, job in self._jobs.items() if not job.is_running]
        streamed = [key for key in ended if self._jobs[key].log is not None]
        for key in {*ended} - {*streamed[-MAX_ENDED:]}:
            del self._jobs[key]

    def running(self, owner: bytes, response_id: str) -> Job | None:
        """A response that is still being made."""
        job = self._jobs.get((owner, response_id))
        return job if job is not None and job.is_running else None

    def log(self, owner: bytes, response_id: str) -> EventLog | None:
        """The events of a response that was made so, if they are kept."""
        job = self._jobs.get((owner, response_id))
        return None if job is None else job.log

    def forget(self, owner: bytes, response_id: str) -> None:
        """Its events are not read any more."""
        self._jobs.pop((owner, response_id), None)


class LogResponse(Response):
    """A job's events from one on, as an answer."""

    def __init__(self, reader: Reader) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers(EVENT_HEADERS)
        self._reader = reader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends them until the job ends or the client leaves."""
        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(head)
        await read_out(self._reader, receive, send)


class BackgroundResponse(Response):
    """The answer to a request for a job, and the job, which does not end with the client."""

    def __init__(self, answer: Response, job: Job, stream: EventStream[Event]) -> None:
        super().__init__()
        self._answer = answer
        self._job = job
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers, and returns when the job has ended."""
        running = asyncio.ensure_future(self._job.run(self._stream))
        try:
            await self._answer(scope, receive, send)
            await running
        finally:
            await end(running)
