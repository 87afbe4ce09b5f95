"""Computes the lines of batches beside everything else: each as a request of its own route.

    BatchStore: open batches -> a task for each -> its lines, some at a time -> Access -> the routes
                                                     their answers -> BatchStore

A line is asked below the keys, as of a class of its key that has a sixteenth of its share, so that
whoever waits for an answer comes first. All lines have half of the router's slots at most, and
batches take turns in them.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from random import Random

import orjson
from starlette.types import ASGIApp, Message

from router.http.batches.lines import Line, LineCheck, batch_error
from router.http.batches.store import BatchStore, Document, output_line
from router.http.bodies import end
from router.http.server.access import Access, AccessRecord
from router.http.server.auth import KeyRing
from router.request.request import ApiKey

_logger = logging.getLogger(__name__)
_SHARE = 1 / 16
_LOOK_EVERY_S = 2.0
_FORGET_EVERY_S = 600.0
# Overload, and the server's end: no fault of the line's.
_LATER = frozenset({429, 499, 503})
# Of a line whose generation fails.
_MAX_TRIES = 5
_FIRST_DELAY_S = 0.25
_MAX_DELAY_S = 30.0
_NO_LINES = batch_error("empty_file", "the input file has no lines, or is not there any more")
_KEY_REMOVED = batch_error("key_removed", "the API key that made the batch is not known any more")


class BatchRunner:
    """Owner of the tasks that compute. `num_slots` are the router's; `keys`: of all its clients.

    `wake` is to be set when there is something new to do.
    """

    def __init__(self, store: BatchStore, keys: KeyRing, num_slots: int) -> None:
        self.store = store
        self.wake = asyncio.Event()
        self._keys = keys
        self._max_slots = max(1, num_slots // 2)
        self._places = asyncio.Semaphore(self._max_slots)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._forgot_s = -_FORGET_EVERY_S

    def connect(self, routes: ASGIApp, new_record: Callable[..., AccessRecord]) -> None:
        """To the routes below the keys; `new_record` makes the record of a request to them."""
        self._routes = routes
        self._new_record = new_record

    async def run(self) -> None:
        """Until it is cancelled; what is open then goes on with the next router."""
        try:
            while True:
                self.wake.clear()
                try:
                    await self._look()
                except Exception:
                    _logger.exception("the file of batches fails; it is tried again")
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_EVERY_S):
                        await self.wake.wait()
        finally:
            await end(*self._tasks.values())
            await self.store.ask(self.store.follow)

    async def _look(self) -> None:
        """Begins what is open; a task that is to end is cancelled, and the next one ends it."""
        store = self.store
        for owner, batch in await store.ask(store.lead):
            task = self._tasks.get(batch["id"])
            if task is None:
                task = asyncio.create_task(self._serve(owner, batch))
                task.add_done_callback(partial(self._ended, batch["id"]))
                self._tasks[batch["id"]] = task
            elif batch["status"] == "cancelling" or self._keys.of_digest(owner) is None:
                task.cancel()
        if time.monotonic() - self._forgot_s >= _FORGET_EVERY_S:
            self._forgot_s = time.monotonic()
            await store.ask(store.forget_old)

    def _ended(self, batch_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[batch_id]
        if task.cancelled():
            self.wake.set()
        elif (error := task.exception()) is not None:
            _logger.error("%s fails; it is tried again", batch_id, exc_info=error)

    async def _serve(self, owner: bytes, batch: Document) -> None:
        """A batch from where it is to its end."""
        store = self.store
        if self._keys.of_digest(owner) is None:
            await store.ask(store.finish, batch["id"], "cancelled", [_KEY_REMOVED])
        elif batch["status"] == "cancelling":
            await store.ask(store.finish, batch["id"], "cancelled")
        elif batch["status"] == "in_progress" or await self._begin(batch):
            status = "completed"
            code = "quota_exceeded"
            message = "the key's files have no room for more answers (--max-batch-bytes)"
            try:
                async with asyncio.timeout(batch["expires_at"] - time.time()):
                    await self._compute_all(owner, batch)
            except TimeoutError:
                status = "expired"
                code = "batch_expired"
                message = "the completion window is over"
            await store.ask(store.give_up, batch["id"], code, message)
            await store.ask(store.finish, batch["id"], status)

    async def _begin(self, batch: Document) -> bool:
        """Takes over the lines of the input file; False: some are wrong, and it has failed."""
        store = self.store
        check = LineCheck(batch["endpoint"])
        after = -1
        while pieces := await store.ask(store.pieces, batch["input_file_id"], after):
            content = b"".join(piece for _, piece in pieces)
            await store.ask(store.add_lines, batch["id"], await store.ask(check.read, content))
            after = pieces[-1][0]
        await store.ask(store.add_lines, batch["id"], check.read(b"\n"))
        if check.errors or not check.seen:
            await store.ask(store.finish, batch["id"], "failed", check.errors or [_NO_LINES])
            return False
        counts = {"total": len(check.seen)}
        begin = partial(store.change, status="in_progress", request_counts=counts)
        await store.ask(begin, batch["id"], "validating")
        return True

    async def _compute_all(self, owner: bytes, batch: Document) -> None:
        store = self.store
        after = -1
        async with asyncio.TaskGroup() as computing:
            while lines := await store.ask(store.open_lines, owner, batch["id"], after):
                for line in lines:
                    await self._places.acquire()
                    task = computing.create_task(self._compute(owner, batch, line))
                    task.add_done_callback(lambda _: self._places.release())
                after = lines[-1].number

    async def _compute(self, owner: bytes, batch: Document, line: Line) -> None:
        """Asks until there is an answer that no later try would better."""
        request_id = f"req_{uuid.uuid4().hex}"
        delay_s = _FIRST_DELAY_S
        num_failed = 0
        while True:
            key = self._keys.of_digest(owner)
            if key is not None:  # else the batch is about to be stopped
                # The same in each process that computes the line, and so is its text.
                draws = Random(f"{batch['id']}/{line.number}")
                record = partial(self._new_record, key=self._class_of(key), draws=draws)
                status, body = await self._ask(
                    Access(self._routes, record), batch, line, request_id
                )
                num_failed += status >= 500
                if status not in _LATER and (status < 500 or num_failed == _MAX_TRIES):
                    break
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)
        response = {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}
        answers = {line.number: output_line(line.custom_id, response, None)}
        store = self.store
        await store.ask(store.answer, batch["id"], answers, is_good=status == 200)

    async def _ask(
        self, app: ASGIApp, batch: Document, line: Line, request_id: str
    ) -> tuple[int, bytes]:
        """Status and body of the answer to a line."""
        path = batch["endpoint"]
        headers = [(b"content-type", b"application/json"), (b"x-request-id", request_id.encode())]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
        scope |= {"query_string": b"", "headers": headers}
        bodies = [{"type": "http.request", "body": line.body}]
        sent: list[Message] = []

        async def receive() -> Message:
            # Behind the body nothing comes: this client does not leave.
            return bodies.pop() if bodies else await asyncio.Future()

        async def send(message: Message) -> None:
            sent.append(message)

        await app(scope, receive, send)
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])

    def _class_of(self, key: ApiKey) -> ApiKey:
        """The lines' part of a key. They wait for each other, so their number a minute is free."""
        slots = self._max_slots
        return replace(
            key,
            name=f"{key.name}/batch".removeprefix("/"),
            weight=key.weight * _SHARE,
            max_concurrent_requests=min(slots, key.max_concurrent_requests or slots),
            requests_per_minute=None,
        )
