"""The responses that are kept: in the making without their client, and made.

    create -> Job.run: EventStream -> ResponseEncoder -> the job's log -> any reader, at any time
                                           |
                                           +-> ResponseStore, at the end

A job runs within the request that created it, whose answer the client has long before. What has
ended is stored within bounds; the least recently used is forgotten first.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from sys import getsizeof
from typing import Any

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from router.http.bodies import end
from router.http.responses.reply import Output, Reply
from router.http.responses.schema import Item
from router.http.resumption import EventLog, Reader, read_out, split_events
from router.http.sse import EVENT_HEADERS, EventStream
from router.request.request import Event

# Some 5000 tokens.
_MAX_LOG_LEN = 1 << 20
MAX_ENDED = 32
MAX_RESPONSES = 10_000
MAX_BYTES = 64 * 2**20
# What the objects around a text weigh, about.
_ITEM_BYTES = 500


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
        return self._reply.fields(status, output)

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
        self._jobs[owner, response_id] = job
        ended = [key for key, job in self._jobs.items() if not job.is_running]
        streamed = [key for key in ended if self._jobs[key].log is not None]
        for key in {*ended} - {*streamed[-MAX_ENDED:]}:
            del self._jobs[key]

    def running(self, owner: bytes, response_id: str) -> Job | None:
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


@dataclass(frozen=True, slots=True)
class Stored:
    """A response as it was answered, and what its conversation grew by."""

    response: bytes
    given: tuple[Item, ...]
    answered: tuple[Item, ...]
    previous_id: str | None

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.given, *self.answered)

    @property
    def num_bytes(self) -> int:
        """What remembering it costs, about."""
        texts = [text for item in self.items for text in item.texts]
        overhead = _ITEM_BYTES * (1 + len(self.items) + len(texts))
        # Not their UTF-8: one emoji lets each letter of a text take four bytes.
        return len(self.response) + sum(map(getsizeof, texts)) + overhead


class ResponseStore:
    """The least recently used are forgotten first, beyond `max_responses` or `max_bytes`.

    Owned by the routes of the Responses. An owner sees its own responses alone.
    """

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._stored: OrderedDict[tuple[bytes, str], Stored] = OrderedDict()
        # Of each item, the responses that hold it, oldest first.
        self._holders: dict[tuple[bytes, str], dict[str, None]] = {}
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    @property
    def num_bytes(self) -> int:
        """What all that is remembered costs, about."""
        return self._num_bytes

    def keep(self, owner: bytes, response_id: str, stored: Stored) -> None:
        """Remembers a new response."""
        self._stored[owner, response_id] = stored
        self._num_bytes += stored.num_bytes
        for item in stored.items:
            self._holders.setdefault((owner, item.item_id), {})[response_id] = None
        while len(self._stored) > self._max_responses or self._num_bytes > self._max_bytes:
            self._drop(*next(iter(self._stored)))

    def get(self, owner: bytes, response_id: str) -> Stored | None:
        """The response, which counts as used; None if it is not known."""
        stored = self._stored.get((owner, response_id))
        if stored is not None:
            self._stored.move_to_end((owner, response_id))
        return stored

    def conversation(self, owner: bytes, response_id: str) -> tuple[Item, ...]:
        """All items up to and with a response, oldest first; all its responses count as used.

        Raises KeyError with the id of a response that is not known any more.
        """
        chain: list[Stored] = []
        next_id: str | None = response_id
        while next_id is not None:
            stored = self.get(owner, next_id)
            if stored is None:
                raise KeyError(next_id)
            chain.append(stored)
            next_id = stored.previous_id
        return tuple(item for one in reversed(chain) for item in one.items)

    def forget(self, owner: bytes, response_id: str) -> bool:
        """Forgets a response; False if it was not known."""
        is_known = (owner, response_id) in self._stored
        if is_known:
            self._drop(owner, response_id)
        return is_known

    def item(self, owner: bytes, item_id: str) -> Item | None:
        """An item of the latest response that holds it, which counts as used; None if none does."""
        for response_id in reversed(self._holders.get((owner, item_id), {})):
            stored = self.get(owner, response_id)
            assert stored is not None, "only responses that are stored hold items"
            return next(item for item in reversed(stored.items) if item.item_id == item_id)
        return None

    def _drop(self, owner: bytes, response_id: str) -> None:
        stored = self._stored.pop((owner, response_id))
        self._num_bytes -= stored.num_bytes
        for key in {(owner, item.item_id) for item in stored.items}:
            holders = self._holders[key]
            del holders[response_id]
            if not holders:
                del self._holders[key]
