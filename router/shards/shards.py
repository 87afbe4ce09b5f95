"""All ranks of a model as one object: every call goes to all of them and waits for all.

It owns the channels, the connection's epoch and the number of its steps, nothing else. It knows no
block, no text and no request beyond ids; only wire.py names protobuf fields.

The shards hold one batch:

    Prefill(new)              a step of the batch, grown by these
    Decode()                  a step of the batch, which may have become empty: a message of the one
                              call that lasts as long as the epoch, for half of a call's cost,
                              or of a connection to the rank's step socket
    ClearCache(), a new epoch nothing runs

A step may be sent before those before it are answered; the shards run them in the order in which
they were sent. So nobody here knows whether the batch is empty when a step comes to its turn.

Whatever goes wrong in a call, on whatever rank, is a ShardFailed that names the rank, the method
and the reason. After one the ranks may disagree, so that the next call must be `reset`. If that
finds an epoch later than its own, another router has the shards now: Displaced, and no call will
ever be answered again.
"""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import grpc
import grpc.aio

from processes.spans import Metadata
from proto import generate_pb2 as pb
from proto.contract import Batch, Image, LoadedAdapter, ModelInfo, PoolLimits, Prepared, StepResult
from proto.generate_pb2_grpc import TextGenerationServiceStub
from router.request.errors import (
    AdapterRefused,
    ConstraintRefused,
    Displaced,
    GenerationFailed,
    InvalidRequest,
    NoAdapter,
    Overloaded,
    ShardFailed,
    ShardUnfit,
    StartupFailed,
)
from router.request.request import Constraint
from router.shards import wire
from router.shards.step_socket import StepSocket
from router.telemetry.tracing import NO_TRACES, Tracer

_logger = logging.getLogger(__name__)

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnects soon, also to a shard that was away for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
    # No step may run twice, and no proxy stands between the tiers.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_HOST_PORT = re.compile(r"[^/]+:\d{1,5}")
_MAX_SOCKET_PATH_LEN = 107
# What a shard answers to calls about a LoRA adapter when nothing is wrong with the shard.
_ADAPTER_ERRORS: Mapping[tuple[str, grpc.StatusCode], type[InvalidRequest]] = MappingProxyType(
    {
        ("LoadAdapter", grpc.StatusCode.INVALID_ARGUMENT): AdapterRefused,
        ("LoadAdapter", grpc.StatusCode.RESOURCE_EXHAUSTED): AdapterRefused,
        ("UnloadAdapter", grpc.StatusCode.NOT_FOUND): NoAdapter,
    }
)
# A shard's error when it is to begin an epoch before its present one.
_LATER_EPOCH = re.compile(r"epoch \d+ is over: epoch \d+ has begun")


def dial_target(address: str) -> str:
    """The gRPC target of host:port, of a socket's path, or of a unix: url.

    Raises StartupFailed for a path longer than the system's sockets have.
    """
    if not address.startswith("unix:") and _HOST_PORT.fullmatch(address):
        return address
    path = address.removeprefix("unix:").removeprefix("//")
    if len(path.encode()) > _MAX_SOCKET_PATH_LEN:
        raise StartupFailed(
            f"the shard's socket path {path!r} has {len(path.encode())} bytes; at most "
            f"{_MAX_SOCKET_PATH_LEN} are possible"
        )
    return f"unix:{path}"


class DecodeCall:
    """One rank's Decode in one epoch: messages, and the answers to them in the same order.

    Locks let in whoever came first.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()

    @property
    def is_over(self) -> bool:
        """Whether a message would have no answer."""
        is_over: bool = self._call.done()
        return is_over

    async def step(self, request: pb.DecodeRequest, timeout_s: float) -> pb.StepResponse:
        """The answer. Raises AioRpcError, TimeoutError, and EOFError where there will be none."""
        async with asyncio.timeout(timeout_s):
            async with self._writing:
                try:
                    await self._call.write(request)
                except asyncio.InvalidStateError:
                    # It has ended since it was asked whether it is over: its shard died.
                    raise EOFError from None
            async with self._reading:
                answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise EOFError
        return cast(pb.StepResponse, answer)

    def close(self) -> None:
        """Hangs up; nobody waits for answers."""
        self._call.cancel()


class Rank:
    """One rank's channel and the calls under way there; it knows no epoch and no step.

    A failed call names the rank, the method and the reason.
    """

    def __init__(self, rank: int, address: str, token: str | None = None) -> None:
        self.name = f"shard {rank} at {address}"
        self.channel = grpc.aio.insecure_channel(dial_target(address), options=_CHANNEL_OPTIONS)
        self._stub = TextGenerationServiceStub(self.channel)
        self._token: Metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        self._decode: DecodeCall | None = None
        self._steps: StepSocket | None = None

    async def open_steps(self, path: str) -> None:
        """The epoch's decode steps go to this socket, if it can be reached."""
        try:
            self._steps = await StepSocket.connect(path)
        except OSError as error:
            _logger.warning("%s: its steps go by gRPC, which takes longer: %s", self.name, error)

    def decode(
        self, request: pb.DecodeRequest, timeout_s: float
    ) -> "asyncio.Future[pb.StepResponse]":
        """A message of the epoch's Decode, under way; its answer is to be awaited."""
        if self._steps is not None:
            return self._steps.step(request, timeout_s)
        if self._decode is None or self._decode.is_over:
            self._decode = DecodeCall(self._stub.Decode(metadata=self._token or None))
        return asyncio.ensure_future(self._decode.step(request, timeout_s))

    def end_decode(self) -> None:
        """The epoch is over."""
        if self._decode is not None:
            self._decode.close()
            self._decode = None
        if self._steps is not None:
            self._steps.close()
            self._steps = None

    def send(
        self,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        waits: bool = False,
        metadata: Metadata | None = None,
    ) -> Any:
        """The call under way, to be awaited; it `waits` for a rank that is not there yet."""
        send = getattr(self._stub, method)
        shown = (*self._token, *(metadata or ())) or None
        return send(request, timeout=timeout_s, metadata=shown, wait_for_ready=waits)

    async def answer(self, method: str, call: Any) -> Any:
        """The answer to a call under way. Raises ShardFailed: ShardUnfit, Displaced among them.

        And AdapterRefused, NoAdapter, which are no failure of the shard.
        """
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            refusal = _ADAPTER_ERRORS.get((method, error.code()))
            if refusal is not None:
                raise refusal(error.details() or error_line(error)) from error
            is_over = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            if is_over and _LATER_EPOCH.search(error.details() or ""):
                raise Displaced(
                    f"another router has taken over {self.name} ({error.details()})"
                ) from error
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            kind = ShardUnfit if is_late else ShardFailed
            raise kind(f"{self.name}, {method}: {error_line(error)}") from error
        except TimeoutError as error:
            raise ShardUnfit(f"{self.name}, {method}: DEADLINE_EXCEEDED: no answer") from error
        except EOFError as error:
            raise ShardFailed(f"{self.name}, {method}: it ended without an answer") from error


def error_line(error: grpc.aio.AioRpcError) -> str:
    """The code and the details of a failed call."""
    return f"{error.code().name}: {error.details() or 'no details'}"


# Rank 0 has so long at least, also for a client that returns because it was not enough.
_SHORTEST_PREPARE_S = 0.1
_PREPARED_SOON_S = 2.0


@dataclass(frozen=True, slots=True)
class ShardTimeouts:
    """Seconds after which a call counts as failed; `control_s` is for all without their own.

    `adapter_s`: to read an adapter's files and pack it, behind the steps that were sent.
    `health_s`: for a sign of life, which a shard gives while it computes, too. `lockstep_s`: how
    long ranks may go on once another one has failed.
    """

    connect_s: float = 60.0
    warmup_s: float = 1800.0
    step_s: float = 120.0
    control_s: float = 10.0
    adapter_s: float = 120.0
    health_s: float = 3.0
    prepare_s: float = 30.0
    # Of an image, which has the cores that steps leave.
    look_s: float = 120.0
    lockstep_s: float = 5.0


class Largest(NamedTuple):
    """The largest step that will ever be sent, and the longest sequence; None: the model's."""

    max_step_tokens: int
    max_batch_size: int
    max_total_len: int | None


class Shards:
    """All ranks. Built by `connect`; only the batcher steps."""

    def __init__(
        self,
        ranks: Sequence[Rank],
        timeouts: ShardTimeouts,
        first_epoch: int,
        tracer: Tracer = NO_TRACES,
        token: str | None = None,
    ) -> None:
        self._ranks = [*ranks]
        self._token = token
        self._timeouts = timeouts
        self._tracer = tracer
        self._epoch = first_epoch
        # Steps of this epoch, the first of which begins the batch.
        self._num_sent = self._num_in_flight = 0
        # What warm-up was asked for, and what it found.
        self._warmed: tuple[Largest, PoolLimits] | None = None

    @classmethod
    async def connect(
        cls,
        address: str,
        timeouts: ShardTimeouts,
        first_epoch: int,
        tracer: Tracer = NO_TRACES,
        *,
        token: str | None = None,
    ) -> "Shards":
        """Dials rank 0, asks it for the others, dials them, and begins an epoch on all.

        `token`: what shards that listen at a port ask for.
        `first_epoch` must be above that of every router before this one (a shard may outlive
        them); nanoseconds of the day's clock are. Raises StartupFailed.
        """
        shards = cls([Rank(0, address, token)], timeouts, first_epoch, tracer, token)
        try:
            await shards._connect()
        except grpc.aio.AioRpcError as error:
            await shards.close()
            raise StartupFailed(_unreachable(address, timeouts.connect_s, error)) from error
        except ShardFailed as error:
            await shards.close()
            raise StartupFailed(str(error)) from error
        return shards

    async def _connect(self) -> None:
        """Raises AioRpcError when rank 0 does not answer, ShardFailed when another one does not."""
        timeout_s = self._timeouts.connect_s
        discover = pb.ServiceDiscoveryRequest()
        answer = await self._ranks[0].send("ServiceDiscovery", discover, timeout_s, waits=True)
        others = enumerate(wire.urls_from_pb(answer)[1:], start=1)
        self._ranks += [Rank(rank, url, self._token) for rank, url in others]
        await self._call_all("Health", pb.HealthRequest(), timeout_s, waits=True)
        # They may still compute a long step of a router that is gone.
        await self._begin_epoch(timeout_s)

    @property
    def num_ranks(self) -> int:
        """How many there are."""
        return len(self._ranks)

    async def info(self) -> ModelInfo:
        """What rank 0 loaded. Raises ShardFailed."""
        answers = await self._call_all("Info", pb.InfoRequest(), self._timeouts.control_s)
        info = wire.info_from_pb(answers[0])
        if info.world_size != self.num_ranks:
            raise ShardFailed(
                f"{self._ranks[0].name} is one of {info.world_size} ranks, but names "
                f"{self.num_ranks} addresses"
            )
        return info

    async def warmup(
        self, max_step_tokens: int, max_batch_size: int, max_total_len: int | None
    ) -> PoolLimits:
        """Runs the largest step once; the limits of the smallest rank. Raises ShardFailed."""
        largest = Largest(max_step_tokens, max_batch_size, max_total_len)
        limits = await self._warm_up(largest, None)
        self._warmed = (largest, limits)
        return limits

    async def _warm_up(self, largest: Largest, before: PoolLimits | None) -> PoolLimits:
        """`before`: the pool that there has been, to be made anew."""
        request = wire.warmup_to_pb(
            self._epoch,
            *largest,
            num_blocks=None if before is None else before.num_blocks,
            num_states=None if before is None else before.num_states or None,
        )
        answers = await self._call_state("Warmup", request, self._timeouts.warmup_s)
        limits = [wire.limits_from_pb(answer) for answer in answers]
        if len({limit.block_size for limit in limits}) > 1:
            raise ShardFailed(f"Warmup: the ranks' block sizes differ: {limits}")
        return PoolLimits(
            num_blocks=min(limit.num_blocks for limit in limits),
            block_size=limits[0].block_size,
            max_total_len=min(limit.max_total_len for limit in limits),
            num_states=min(limit.num_states for limit in limits),
        )

    async def prepare(self, constraint: Constraint) -> Prepared:
        """Has rank 0, which masks for all, compile a request's constraint beside its steps.

        Raises ConstraintRefused when it cannot,
        GenerationFailed when it takes too long, Overloaded when it takes longer than this request
        may wait, though rank 0 goes on and the next one may find it done, and ShardFailed when
        rank 0 does not answer for another reason.
        """
        first = self._ranks[0]
        timeout_s = self._prepare_s(constraint)
        request = wire.prepare_to_pb(constraint)
        try:
            return wire.prepared_from_pb(await first.send("PrepareConstraint", request, timeout_s))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                # The router's own check accepted it, so that the author made no mistake.
                raise ConstraintRefused(
                    error.details() or error_line(error), "too_complex"
                ) from error
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                message = f"{first.name} did not compile the constraint within {timeout_s:.3g} s"
                if timeout_s < self._timeouts.prepare_s:
                    raise Overloaded(message, _PREPARED_SOON_S) from error
                raise GenerationFailed(message) from error
            raise ShardFailed(f"{first.name}, PrepareConstraint: {error_line(error)}") from error

    def _prepare_s(self, constraint: Constraint) -> float:
        """What the constraint's check has left of the time, which is little where it was slow."""
        longest_s = self._timeouts.prepare_s
        if constraint.prepare_by_s is None:
            return longest_s
        return min(longest_s, max(_SHORTEST_PREPARE_S, constraint.prepare_by_s - monotonic()))

    async def look_ahead(self, image: Image, span_ids: Sequence[int]) -> float:
        """Has every rank look at an image beside its steps, and keep what it sees for a while.

        Answers the seconds of the slowest one, 0 where all knew it. Whatever goes wrong, the step
        that computes of the image looks at it then.
        """
        request = wire.look_ahead_to_pb(image, span_ids)
        looking = [rank.send("LookAhead", request, self._timeouts.look_s) for rank in self._ranks]
        looked_s = 0.0
        for answer in await asyncio.gather(*looking, return_exceptions=True):
            if isinstance(answer, grpc.aio.AioRpcError):
                _logger.info("an image was not looked at beside steps: %s", error_line(answer))
            elif isinstance(answer, BaseException):
                raise answer
            else:
                looked_s = max(looked_s, wire.looked_s_from_pb(answer))
        return looked_s

    async def load_adapter(self, adapter_id: int, path: str) -> LoadedAdapter:
        """Has every rank hold its part of a LoRA adapter, beside the steps; of all ranks together.

        Raises AdapterRefused with a rank's reason, and ShardFailed. Either way some ranks may hold
        it, so that it has to be unloaded.
        """
        request = wire.load_adapter_to_pb(self._epoch, adapter_id, path)
        answers = await self._call_state("LoadAdapter", request, self._timeouts.adapter_s)
        parts = [wire.loaded_from_pb(answer) for answer in answers]
        return LoadedAdapter(
            max(part.rank for part in parts), sum(part.num_bytes for part in parts)
        )

    async def unload_adapter(self, adapter_id: int | None) -> None:
        """No rank holds the adapter any more, if one did; None: any. Raises ShardFailed."""
        request = wire.unload_adapter_to_pb(self._epoch, adapter_id)
        for rank in self._ranks:
            with suppress(NoAdapter):
                call = rank.send("UnloadAdapter", request, self._timeouts.adapter_s)
                await rank.answer("UnloadAdapter", call)

    async def check_health(self) -> None:
        """Raises ShardFailed unless every rank answers soon."""
        await self._call_all("Health", pb.HealthRequest(), self._timeouts.health_s)

    async def reset(self) -> bool:
        """All ranks forget all requests, and a new epoch begins; new ones are warmed up as before.

        Whether there are new ones, which hold no adapter. Raises ShardFailed, Displaced.
        """
        await self.check_health()
        answers = await self._begin_epoch(self._timeouts.control_s)
        has_new = not all(map(wire.is_warm, answers))
        if self._warmed is not None and has_new:
            largest, limits = self._warmed
            found = await self._warm_up(largest, limits)
            if found != limits:
                raise ShardUnfit(f"the shards began anew with {found}; they had {limits}")
        return has_new

    async def _begin_epoch(self, timeout_s: float) -> Sequence[Any]:
        self._epoch += 1
        self._num_sent = self._num_in_flight = 0
        for rank in self._ranks:
            rank.end_decode()
        answers = await self._call_state("ClearCache", wire.clear_to_pb(self._epoch), timeout_s)
        for rank, answer in zip(self._ranks, answers, strict=True):
            path = wire.step_socket(answer)
            if path is not None:
                await rank.open_steps(path)
        return answers

    def step(self, batch: Batch) -> "asyncio.Task[StepResult]":
        """Computes the batch's tokens. Raises ShardFailed, mostly when awaited.

        The calls are under way when this returns, behind those of earlier steps, so that there is
        time for other work before the answer is awaited. What the batch drops leaves with the same
        call: a step that was sent before and writes the blocks of what is dropped has run by then,
        so that they may belong to others in this one.
        """
        step = self._num_sent + 1
        if not batch.is_prefill and not self._num_sent:
            raise ShardFailed(f"step {batch.step_id} decodes, but the shards hold no batch")
        self._num_sent = step
        self._num_in_flight += 1
        # It waits for those before it.
        timeout_s = self._timeouts.step_s * self._num_in_flight
        if batch.is_prefill:
            method = "Prefill"
            prefill = wire.prefill_to_pb(batch, self._epoch, step)
            metadata = self._tracer.step_metadata(new.request_id for new in batch.new)
            calls = [
                rank.send(method, prefill, timeout_s, metadata=metadata) for rank in self._ranks
            ]
        else:
            method = "Decode"
            decode = wire.decode_to_pb(batch, self._epoch, step)
            calls = [rank.decode(decode, timeout_s) for rank in self._ranks]
        return asyncio.ensure_future(self._finish_step(method, calls, batch.step_id))

    async def close(self) -> None:
        """Hangs up."""
        for rank in self._ranks:
            rank.end_decode()
            await rank.channel.close()

    async def _finish_step(self, method: str, calls: Sequence[Any], step_id: int) -> StepResult:
        answers = await self._finish(method, calls)
        self._check_epoch(method, answers)
        self._num_in_flight -= 1
        return self._agreed(method, answers, step_id)

    def _agreed(self, method: str, messages: Sequence[Any], step_id: int) -> StepResult:
        """Rank 0's result, once every rank holds the same requests."""
        result = wire.step_from_pb(messages[0], step_id)
        held_ids = set(result.remaining_ids)
        for rank, message in zip(self._ranks[1:], messages[1:], strict=True):
            other_ids = set(wire.step_from_pb(message, step_id).remaining_ids)
            if other_ids != held_ids:
                raise ShardFailed(
                    f"{rank.name}, {method}: holds requests {sorted(other_ids)},"
                    f" shard 0 holds {sorted(held_ids)}"
                )
        return result

    async def _call_state(self, method: str, request: Any, timeout_s: float) -> Sequence[Any]:
        """A call that touches state: its answers must be of this epoch."""
        answers = await self._call_all(method, request, timeout_s)
        self._check_epoch(method, answers)
        return answers

    async def _call_all(
        self, method: str, request: Any, timeout_s: float, *, waits: bool = False
    ) -> Sequence[Any]:
        calls = [rank.send(method, request, timeout_s, waits=waits) for rank in self._ranks]
        return await self._finish(method, calls)

    async def _finish(self, method: str, calls: Sequence[Any]) -> Sequence[Any]:
        """Every rank's answer. Raises ShardFailed, Displaced.

        Waits for all, since they are in lockstep; but once one has failed, the others, which may
        be waiting for it, get no more than `lockstep_s`. An error that is no ShardFailed is a bug,
        and raised as it is.
        """
        if len(calls) == 1:
            return [await self._ranks[0].answer(method, calls[0])]
        futures = [
            asyncio.ensure_future(rank.answer(method, call))
            for rank, call in zip(self._ranks, calls, strict=True)
        ]
        try:
            _, pending = await asyncio.wait(futures, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                await asyncio.wait(pending, timeout=self._timeouts.lockstep_s)
        finally:
            for future in futures:
                future.cancel()
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, ShardFailed)]
        if failures:
            kinds = {type(failure) for failure in failures}
            kind = next((kind for kind in (Displaced, ShardUnfit) if kind in kinds), ShardFailed)
            raise kind("; ".join(map(str, failures)))
        refusal = next((each for each in outcomes if isinstance(each, InvalidRequest)), None)
        if refusal is not None:
            raise refusal
        for rank, outcome in zip(self._ranks, outcomes, strict=True):
            if isinstance(outcome, asyncio.CancelledError):
                raise ShardFailed(f"{rank.name}, {method}: cancelled") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes

    def _check_epoch(self, method: str, answers: Sequence[Any]) -> None:
        for rank, answer in zip(self._ranks, answers, strict=True):
            try:
                wire.check_epoch(answer, self._epoch)
            except ShardFailed as error:
                raise ShardFailed(f"{rank.name}, {method}: {error}") from None


def _unreachable(address: str, timeout_s: float, error: grpc.aio.AioRpcError) -> str:
    if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
        return f"no shard answers at {address} (waited {timeout_s:g} s); is it started?"
    return f"the shard at {address} refused ServiceDiscovery: {error_line(error)}"
