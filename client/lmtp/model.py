"""LmtpModel: a served model over one WebSocket, with streams that outlive it.

A call takes as many requests as it needs, when connections are lost:

    first request   | prompt |                         -> tokens 0 .. k, then the connection is lost
    next request    | prompt | output: tokens 0..k-1 | -> token k again, k+1 ..

Draws depend on the seed and the position alone, so the second request generates what the first
would have; where the caller gave no seed, one is drawn here. The last token is requested again:
it may have been the end, of which only the reason was lost, and nothing follows an end. It also
shows that both requests generate the same output.
"""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, TypeVar

from client.calls import (
    Answer,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    GenerateCall,
    GeneratedToken,
    ScoreCall,
    Scores,
    ServerNotice,
    Usage,
)
from client.errors import ConnectionLost, Overloaded, ServerFailed, TandemError, Unreachable
from client.lmtp.address import read_address
from client.lmtp.connection import Connection, FrameWriter, OnNotice, Stream, open_websocket
from client.lmtp.frames import Greeting, Part, StreamEnd, beams_frame, generate_frame, score_frame


class GenerateProgress:
    """The tokens received of one GenerateCall."""

    def __init__(self, call: GenerateCall, *, draw_seed: Callable[[], int]) -> None:
        if call.sampling.temperature > 0 and call.sampling.seed is None:
            call = replace(call, sampling=replace(call.sampling, seed=draw_seed()))
        self._call = call
        self._started_s = time.monotonic()
        self._tokens: list[GeneratedToken] = []
        self._repeated: GeneratedToken | None = None
        self._is_different = False
        self._num_known = 0
        self._known_text = ""
        self._known_thought = ""

    def request(self) -> GenerateCall:
        """The call for the missing rest."""
        call = self._call
        tokens = self._tokens
        self._repeated = tokens[-1] if tokens and not self._is_different else None
        known = tokens[:-1] if self._repeated else tokens
        self._num_known = len(known)
        self._known_text = "".join(token.text for token in known)
        self._known_thought = "".join(token.thought or "" for token in known)
        if call.timeout_s is not None:
            left_s = call.timeout_s - (time.monotonic() - self._started_s)
            call = replace(call, timeout_s=max(left_s, 0.001))
        output = (*call.output, *(token.token_id for token in known))
        return replace(call, output=output)

    def record(self, token: GeneratedToken) -> GeneratedToken | None:
        """Records a token; None: it is known. Raises ServerFailed if it differs from that one."""
        if self._repeated is None:
            self._tokens.append(token)
            return token
        before = self._repeated
        self._repeated = None
        if before.token_id != token.token_id:
            self._is_different = True
            raise ServerFailed(
                f"the output cannot be taken up again: token {len(self._tokens) - 1} was "
                f"{before.token_id} and is {token.token_id} now",
                "not_resumable",
                is_retryable=self._can_go_on,
            )
        return None

    @property
    def _can_go_on(self) -> bool:
        """Whether tokens may follow the last one, so that a difference does no harm."""
        call = self._call
        num_tokens = len(self._tokens)
        is_full = call.max_tokens is not None and len(call.output) + num_tokens >= call.max_tokens
        return not (is_full or self._tokens[-1].is_end)

    def answer(self, end: StreamEnd) -> Answer:
        """The whole answer, with the usage of a single request."""
        num_prompt_tokens = end.usage.num_prompt_tokens - self._num_known
        usage = Usage(
            num_prompt_tokens=num_prompt_tokens,
            num_cached_tokens=min(end.usage.num_cached_tokens, num_prompt_tokens),
            num_output_tokens=len(self._tokens),
        )
        return Answer(
            text=self._known_text + end.text,
            tokens=tuple(self._tokens),
            finish_reason=end.finish_reason,
            usage=usage,
            stop_string=end.stop_string,
            constraint_satisfied=end.constraint_satisfied,
            violation=end.violation,
            seed=self._call.sampling.seed if end.seed is None else end.seed,
            thought=self._known_thought + end.thought,
        )


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The bounds of retries; times in seconds.

    `max_tries`: in a row, without a token in between, after a lost connection or a failure that
    may be temporary; 1: no retries. The pauses double from `first_pause_s` to `max_pause_s`: with
    these values a server may be away for about 25 seconds.
    `max_wait_s`: the time to wait for an overloaded server, in all; 0: Overloaded is raised.
    """

    max_tries: int = 12
    first_pause_s: float = 0.1
    max_pause_s: float = 5.0
    max_wait_s: float = 30.0


class Retries:
    """The retries of one request. `on_lost` is called before a pause without a server."""

    def __init__(self, policy: RetryPolicy, on_lost: Callable[[TandemError], None]) -> None:
        self._policy = policy
        self._on_lost = on_lost
        self._num_failures = 0
        self._waited_s = 0.0

    def reset(self) -> None:
        """The request made progress: its number of tries counts from the start."""
        self._num_failures = 0

    async def wait(self, error: TandemError) -> None:
        """Waits until the request may be sent again; raises `error` if it may not."""
        if isinstance(error, Overloaded):
            await self._wait_for_room(error)
        elif not _is_temporary(error):
            raise error
        else:
            self._num_failures += 1
            if self._num_failures >= self._policy.max_tries:
                raise error
            if not isinstance(error, ServerFailed):
                self._on_lost(error)
            await asyncio.sleep(self._pause_s(self._num_failures))

    async def _wait_for_room(self, error: Overloaded) -> None:
        self._num_failures += 1
        pause_s = error.retry_after_s or self._pause_s(self._num_failures)
        if self._waited_s + pause_s > self._policy.max_wait_s:
            raise error
        self._waited_s += pause_s
        await asyncio.sleep(pause_s)

    def _pause_s(self, num_failures: int) -> float:
        # Random, so that clients which lost the same server do not all return at once.
        longest_s = self._policy.first_pause_s * 2.0 ** min(num_failures - 1, 30)
        return min(longest_s, self._policy.max_pause_s) * (0.5 + random.random() / 2)


def _is_temporary(error: TandemError) -> bool:
    if isinstance(error, ServerFailed):
        return error.is_retryable
    return isinstance(error, ConnectionLost | Unreachable)


PartT = TypeVar("PartT", GeneratedToken, Scores, BeamsReport)


def ignore_notice(_: ServerNotice) -> None:
    """Drops a notice."""


def draw_seed() -> int:
    """A random seed, for calls without one."""
    return random.getrandbits(53)


class LmtpModel:
    """A Model (see `client/calls.py`) at a URL. Owner of its connections.

    It connects when first needed, and again after a loss. It belongs to the event loop that uses
    it. Close it, or use it as an async context manager.

    name:      the model of calls that name none
    on_notice: is called with the server's messages about itself: queued, loading, draining; and
               with `reconnecting` as soon as the server is gone
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        name: str | None = None,
        retry: RetryPolicy | None = None,
        on_notice: OnNotice = ignore_notice,
        timeout_s: float = 10.0,
        draw_seed: Callable[[], int] = draw_seed,
    ) -> None:
        self._address = read_address(url, key)
        self._name = name
        self._retry = retry or RetryPolicy()
        self._on_notice = on_notice
        self._timeout_s = timeout_s
        self._draw_seed = draw_seed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        # More than one where some are full or drain, or where a server binds each to one model.
        self._connections: list[Connection] = []
        self._was_reached = False
        self._is_lost = False
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the model for good: open streams and further calls fail with ConnectionLost."""
        self._is_closed = True
        connections = self._connections
        self._connections = []
        for connection in connections:
            await connection.close()

    async def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        call = replace(call, model=call.model or self._name)
        progress = GenerateProgress(call, draw_seed=self._draw_seed)
        retries = Retries(self._retry, self._say_lost)
        while True:
            try:
                write = partial(generate_frame, progress.request())
                with await self._request(call.model, write) as parts:
                    while not isinstance(part := await parts.next(), StreamEnd):
                        token = progress.record(_expected(part, GeneratedToken))
                        if token is not None:
                            retries.reset()
                            yield token
                yield progress.answer(part)
                return
            except TandemError as error:
                await self._wait(error, retries)

    async def generate(self, call: GenerateCall) -> Answer:
        async with aclosing(self.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    return part
        raise AssertionError("this is a bug: a stream ended without its Answer")

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        # A search draws nothing, so a lost one is sent again as it was, with the same results.
        call = replace(call, model=call.model or self._name)
        retries = Retries(self._retry, self._say_lost)
        while True:
            try:
                with await self._request(call.model, partial(beams_frame, call)) as parts:
                    while not isinstance(part := await parts.next(), BeamsAnswer):
                        yield _expected(part, BeamsReport)
                yield part
                return
            except TandemError as error:
                await self._wait(error, retries)

    async def score(self, call: ScoreCall) -> Scores:
        call = replace(call, model=call.model or self._name)
        retries = Retries(self._retry, self._say_lost)
        while True:
            try:
                with await self._request(call.model, partial(score_frame, call)) as parts:
                    return _expected(await parts.next(), Scores)
            except TandemError as error:
                await self._wait(error, retries)

    async def server(self) -> Greeting:
        """The server's reply to HELLO; connects if necessary."""
        return (await self._connected(self._name)).greeting

    async def _wait(self, error: TandemError, retries: Retries) -> None:
        # A server that never answered is not expected back.
        if self._is_closed or (isinstance(error, Unreachable) and not self._was_reached):
            raise error
        await retries.wait(error)

    def _say_lost(self, error: TandemError) -> None:
        """Once, however many streams and tries there are."""
        if not self._is_lost:
            self._is_lost = True
            notice = ServerNotice("reconnecting", f"{error}; trying again")
            asyncio.get_running_loop().call_soon(self._on_notice, notice)

    async def _request(self, model: str | None, write: FrameWriter) -> Stream:
        return (await self._connected(model)).stream(write)

    async def _connected(self, model: str | None) -> Connection:
        """A connection that serves `model` and has room for a stream."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            if self._loop is not None and not self._loop.is_closed():
                raise RuntimeError("an LmtpModel belongs to the event loop that used it first")
            self._loop = loop
            self._connecting = asyncio.Lock()
            self._connections = []
        async with self._connecting:
            await self._drop_unused()
            if self._is_closed:
                raise ConnectionLost("this LmtpModel was closed")
            usable = (each for each in self._connections if each.has_room and each.bind(model))
            connection = next(usable, None)
            if connection is None:
                await self._close_idle()
                connection = await self._open()
                connection.bind(model)
                self._connections.append(connection)
            return connection

    async def _open(self) -> Connection:
        websocket, greeting = await open_websocket(self._address, self._timeout_s)
        connection = Connection(websocket, greeting, self._on_notice)
        self._was_reached = True
        self._is_lost = False
        if self._is_closed:
            await connection.close()
            raise ConnectionLost("this LmtpModel was closed")
        return connection

    async def _close_idle(self) -> None:
        """Closes connections without streams. They are of other models, which a server of several
        keeps in memory as long as they are open, and has perhaps no room for another one."""
        for connection in [each for each in self._connections if not each.num_streams]:
            self._connections.remove(connection)
            await connection.close()

    async def _drop_unused(self) -> None:
        """Drops connections that are closed, or that drain and have no stream left."""
        kept = []
        for connection in self._connections:
            if connection.is_open and connection.is_draining and not connection.num_streams:
                await connection.close()
            if connection.is_open:
                kept.append(connection)
        self._connections = kept


def _expected(part: Part, kind: type[PartT]) -> PartT:
    if not isinstance(part, kind):
        raise ServerFailed(
            f"the server sent {type(part).__name__} instead of {kind.__name__}", "protocol"
        )
    return part
