"""The gRPC methods; owner of the epoch.

Domain errors become gRPC codes here, and messages the classes of the contract: it is the only file
of this tier that names message fields.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from constraints.spec import ConstraintSpec, ThoughtRule, Translation
from model_server.engine.runner import Runner
from model_server.errors import (
    ConstraintRefused,
    InvalidStep,
    NoAdapter,
    NoBatch,
    OutOfMemory,
    RanksDiverged,
    ShardError,
    StaleEpoch,
)
from model_server.masking.constraint_cache import ConstraintCache
from model_server.service.device_thread import DeviceThread
from model_server.service.step_queue import GivenStep, StepQueue
from model_server.service.tracing import NO_TRACES, StepCall, StepTracer
from model_server.step import StepOutput
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc
from proto.contract import (
    Generation,
    Image,
    ImageTensor,
    KeptState,
    LogprobParams,
    ModelInfo,
    NewSequence,
    OutputConstraint,
    RunningUpdate,
    SampledToken,
    SamplingParams,
    StopParams,
    TopToken,
)
from proto.convert import (
    CONSTRAINT_KINDS,
    FINISH_REASONS,
    MASK_EFFECTS,
    WHITESPACES,
    from_message,
    to_message,
)


class Lease:
    """The router's lease on what a shard holds for it: over when it says nothing for long.

    A router asks for a sign of life every second, so one that is silent is gone or stands still.
    What it had is freed; the weights stay, and the next router, or the same one, begins a new
    epoch. Each call renews the lease, at its begin and its end; a call under way keeps it. Decode,
    which lasts as long as the epoch, does not: each of its messages renews it.
    """

    def __init__(self, length_s: float) -> None:
        self._length_s = length_s
        self._renewed_s = monotonic()
        self._num_calls = 0
        self._is_over = True

    @contextmanager
    def call(self) -> Iterator[None]:
        """A call of the router is under way."""
        self._num_calls += 1
        self.renew()
        try:
            yield
        finally:
            self._num_calls -= 1
            self.renew()

    def renew(self) -> None:
        """The router said something."""
        self._is_over = False
        self._renewed_s = monotonic()

    async def run(self, release: Callable[[], Awaitable[None]]) -> None:
        """Calls `release` each time that the lease ends, until cancelled."""
        while True:
            left_s = self._renewed_s + self._length_s - monotonic()
            if self._is_over or self._num_calls or left_s > 0.0:
                await asyncio.sleep(max(left_s, self._length_s / 10))
                continue
            self._is_over = True
            await release()


_log = logging.getLogger(__name__)

_KIND_FROM_PB = {number: kind for kind, number in CONSTRAINT_KINDS.items()}
_WHITESPACE_FROM_PB = {number: whitespace for whitespace, number in WHITESPACES.items()}

# The first class that fits decides, so the more special ones stand first.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (NoBatch, grpc.StatusCode.NOT_FOUND),
    (NoAdapter, grpc.StatusCode.NOT_FOUND),
    (StaleEpoch, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidStep, grpc.StatusCode.INVALID_ARGUMENT),
    (OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RanksDiverged, grpc.StatusCode.ABORTED),
    (ShardError, grpc.StatusCode.INTERNAL),
)

# Generic for the type checker alone, hence in quotes.
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]]


class Failures:
    """Errors as statuses of gRPC. `on_fatal` is called once one makes the shard unfit."""

    def __init__(self, on_fatal: Callable[[ShardError], None]) -> None:
        self._on_fatal = on_fatal

    def of(self, method: str, error: BaseException) -> tuple[grpc.StatusCode, str]:
        """The status and its details."""
        if isinstance(error, ShardError):
            if isinstance(error, RanksDiverged):
                self._on_fatal(type(error)(f"{method}: {error}"))
            code = next(code for kind, code in _CODES if isinstance(error, kind))
            return code, str(error)
        # What is left is a bug or a broken device.
        _log.error("%s failed", method, exc_info=error)
        reason = f"{method}: {type(error).__name__}: {error}"
        self._on_fatal(ShardError(reason))
        return grpc.StatusCode.INTERNAL, reason


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every method."""

    def __init__(self, failures: Failures, lease: Lease) -> None:
        self._failures = failures
        self._lease = lease

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method.rpartition("/")[2]
        if handler is not None and handler.unary_unary is not None:
            call = self._leased(handler.unary_unary)
            make = grpc.unary_unary_rpc_method_handler
        elif handler is not None and handler.stream_stream is not None and method == "Decode":
            call = self._renewing(handler.stream_stream)
            make = grpc.stream_stream_rpc_method_handler
        else:
            return handler
        return make(
            self._guarded(method, call),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _leased(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def leased(request: Any, context: Context) -> Any:
            with self._lease.call():
                return await call(request, context)

        return leased

    def _renewing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def renewed(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async for request in requests:
                self._lease.renew()
                yield request

        async def renewing(requests: AsyncIterator[Any], context: Context) -> None:
            await call(renewed(requests), context)

        return renewing

    def _guarded(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: Context) -> Any:
            try:
                return await call(request, context)
            except Exception as error:
                # abort() raises in its turn.
                if isinstance(error, grpc.aio.AbortError):
                    raise
                await context.abort(*self._failures.of(method, error))

        return guarded


T = TypeVar("T")


class TextGenerationService(pb_grpc.TextGenerationServiceServicer):
    """Owner of the epoch; everything else is the runner's.

    `constraints` exist on rank 0 alone. `look_thread` looks at images beside steps; None: any does.
    """

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        urls: tuple[str, ...],
        device_thread: DeviceThread,
        tracer: StepTracer = NO_TRACES,
        constraints: ConstraintCache | None = None,
        look_thread: Executor | None = None,
    ) -> None:
        self._runner = runner
        self._info = info
        self._urls = urls
        self.device_thread = device_thread
        self._tracer = tracer
        self._constraints = constraints
        self._look_thread = look_thread
        self._steps = StepQueue(runner, device_thread, tracer)
        # The path at which the thread takes decode steps beside Decode; empty: there is none.
        self.step_socket = ""
        # One adapter is read at a time.
        self._reading = asyncio.Lock()
        self._epoch = 0

    async def Health(self, request: pb.HealthRequest, context: Context) -> pb.HealthResponse:
        return pb.HealthResponse()

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        return to_message(self._info, pb.InfoResponse)

    async def ServiceDiscovery(
        self, request: pb.ServiceDiscoveryRequest, context: Context
    ) -> pb.ServiceDiscoveryResponse:
        return pb.ServiceDiscoveryResponse(urls=self._urls)

    async def Warmup(self, request: pb.WarmupRequest, context: Context) -> pb.WarmupResponse:
        self._require_epoch(request.epoch)
        max_total_len = _optional(request, "max_total_len")
        num_blocks = _optional(request, "num_blocks")
        num_states = _optional(request, "num_states")
        limits = await self._on_device(
            lambda: self._runner.warmup(
                request.max_step_tokens,
                request.max_batch_size,
                max_total_len,
                num_blocks,
                num_states,
            )
        )
        return to_message(limits, pb.WarmupResponse, epoch=request.epoch)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepResponse:
        self._require_epoch(request.epoch)
        call = StepCall(
            new=tuple(map(sequence_from_pb, request.batch.requests)),
            updates=updates_from_pb(request),
            dropped_ids=tuple(request.dropped_ids),
            metadata=context.invocation_metadata(),
        )
        output = await self._steps.run(call, _optional(request, "step"))
        return step_to_pb(output, request.epoch)

    async def Decode(  # type: ignore[override]
        self, requests: AsyncIterator[pb.DecodeRequest], context: Context
    ) -> None:
        """Each step is begun when it comes, and answered in its turn."""
        begun: asyncio.Queue[asyncio.Task[pb.StepResponse] | None] = asyncio.Queue()
        taking = asyncio.ensure_future(self._take(requests, begun))
        try:
            while (step := await begun.get()) is not None:
                await context.write(await step)
            await taking
        finally:
            left = [taking, *(begun.get_nowait() for _ in range(begun.qsize()))]
            for task in filter(None, left):
                task.cancel()
            await asyncio.gather(*filter(None, left), return_exceptions=True)

    async def _take(
        self,
        requests: AsyncIterator[pb.DecodeRequest],
        begun: "asyncio.Queue[asyncio.Task[pb.StepResponse] | None]",
    ) -> None:
        """None after the last: all have come, or one could not be read."""
        try:
            async for request in requests:
                begun.put_nowait(asyncio.ensure_future(self.decode(request)))
        except DecodeError as error:
            raise InvalidStep(f"it is no message: {error}") from error
        finally:
            begun.put_nowait(None)

    async def decode(self, request: pb.DecodeRequest) -> pb.StepResponse:
        """One step of those that run."""
        self._require_epoch(request.epoch)
        call = StepCall((), updates_from_pb(request), tuple(request.dropped_ids))
        output = await self._steps.run(call, _optional(request, "step"))
        return step_to_pb(output, request.epoch)

    def take(
        self,
        request: pb.DecodeRequest,
        answer: Callable[[pb.StepResponse], None],
        fail: Callable[[BaseException], None],
    ) -> GivenStep:
        """As `decode`, on the device's thread, on which it is answered too.

        Raises InvalidStep and StaleEpoch for what is wrong with the request itself.
        """
        self._require_epoch(request.epoch)
        call = StepCall((), updates_from_pb(request), tuple(request.dropped_ids))
        step = GivenStep(
            call,
            _optional(request, "step"),
            lambda output: answer(step_to_pb(output, request.epoch)),
            fail,
        )
        self._steps.give(step)
        return step

    async def FilterBatch(
        self, request: pb.FilterBatchRequest, context: Context
    ) -> pb.FilterBatchResponse:
        self._require_epoch(request.epoch)
        request_ids = frozenset(request.request_ids)
        kept_ids = await self._on_device(lambda: self._filter(request_ids))
        return pb.FilterBatchResponse(epoch=request.epoch, request_ids=kept_ids)

    async def PrepareConstraint(
        self, request: pb.PrepareConstraintRequest, context: Context
    ) -> pb.PrepareConstraintResponse:
        spec = spec_from_pb(request.constraint)
        if self._constraints is None:
            raise ConstraintRefused("this rank compiles no constraints; rank 0 does")
        translation = translation_from_pb(request.constraint)
        prepared = await asyncio.wrap_future(self._constraints.prepare(spec, translation))
        return to_message(prepared, pb.PrepareConstraintResponse)

    async def LookAhead(
        self, request: pb.LookAheadRequest, context: Context
    ) -> pb.LookAheadResponse:
        try:
            image = image_from_pb(request.image)
        except ValueError as error:
            raise InvalidStep(str(error)) from error
        span_ids = list(request.span_ids)
        loop = asyncio.get_running_loop()
        look_ns = await loop.run_in_executor(self._look_thread, self._look_ahead, image, span_ids)
        return pb.LookAheadResponse(look_ns=look_ns)

    def _look_ahead(self, image: Image, span_ids: list[int]) -> int:
        begun_ns = time.perf_counter_ns()
        self._runner.look_ahead(image, span_ids)
        return time.perf_counter_ns() - begun_ns

    async def LoadAdapter(
        self, request: pb.LoadAdapterRequest, context: Context
    ) -> pb.LoadAdapterResponse:
        self._require_epoch(request.epoch)
        adapter_id = request.adapter_id
        async with self._reading:
            adapter = await asyncio.to_thread(
                self._runner.read_adapter, adapter_id, Path(request.path)
            )
            self._require_epoch(request.epoch)
            await self._on_device(lambda: self._runner.load_adapter(adapter_id, adapter))
        return pb.LoadAdapterResponse(
            epoch=request.epoch, rank=adapter.rank, num_bytes=adapter.packed.num_bytes
        )

    async def UnloadAdapter(
        self, request: pb.UnloadAdapterRequest, context: Context
    ) -> pb.UnloadAdapterResponse:
        self._require_epoch(request.epoch)
        adapter_id = request.adapter_id
        if adapter_id:
            await self._on_device(lambda: self._runner.unload_adapter(adapter_id))
        else:
            await self._on_device(self._runner.unload_adapters)
        return pb.UnloadAdapterResponse(epoch=request.epoch)

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        if request.epoch < self._epoch:
            raise StaleEpoch(f"epoch {request.epoch} is over: epoch {self._epoch} has begun")
        self._epoch = request.epoch
        await self._on_device(lambda: self._begin_epoch(request.epoch))
        return pb.ClearCacheResponse(
            epoch=request.epoch, is_warm=self._runner.is_warm, step_socket=self.step_socket
        )

    def _begin_epoch(self, epoch: int) -> None:
        self._steps.begin_epoch(epoch)
        self._clear()

    def _clear(self) -> None:
        self._runner.clear()
        self._tracer.kept(())

    def _filter(self, request_ids: frozenset[int]) -> tuple[int, ...]:
        kept_ids = self._runner.filter(request_ids)
        self._tracer.kept(kept_ids)
        return kept_ids

    async def release(self) -> None:
        """The router says nothing any more: its requests are forgotten, the epoch goes on."""
        if self._runner.holds_requests:
            _log.warning("the router has said nothing for long; what it had is freed")
            await self._on_device(self._clear)

    def _require_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise StaleEpoch(f"epoch {epoch} is not the present one, {self._epoch}")

    async def _on_device(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.device_thread, work)


def sequence_from_pb(message: pb.Request) -> NewSequence:
    constraint = None
    if message.HasField("constraint") and message.constraint.kind != pb.CONSTRAINT_KIND_NONE:
        constraint = OutputConstraint(
            spec=spec_from_pb(message.constraint),
            cuts=message.constraint.cuts,
            translation=translation_from_pb(message.constraint),
            thought=thought_from_pb(message.constraint),
        )
    try:
        return NewSequence(
            request_id=message.id,
            token_ids=tuple(message.token_ids),
            prompt_len=message.prompt_len,
            cached_len=message.cached_len,
            chunk_len=message.chunk_len,
            block_ids=tuple(message.block_ids),
            sampling=from_message(message.sampling, SamplingParams),
            stop=from_message(message.stopping, StopParams),
            logprobs=from_message(message.logprobs, LogprobParams),
            constraint=constraint,
            pause_len=_optional(message, "pause_len"),
            state_ids=tuple(message.state_ids),
            from_state=_optional(message, "from_state"),
            kept_states=tuple(
                KeptState(kept.position, kept.state_id) for kept in message.kept_states
            ),
            adapter_id=_optional(message, "adapter_id"),
            max_drafts=message.max_drafts,
            images=tuple(map(image_from_pb, message.images)),
        )
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def image_from_pb(message: pb.Image) -> Image:
    """Raises ValueError."""
    tensors = {name: from_message(each, ImageTensor) for name, each in message.tensors.items()}
    return Image(message.digest, message.start, message.span_len, tensors)


def translation_from_pb(message: pb.Constraint) -> Translation | None:
    """What the router has found of a constraint, if it says so. Raises InvalidStep."""
    if not message.HasField("translation"):
        return None
    found = message.translation
    try:
        return Translation(
            grammar=found.grammar,
            not_enforced=tuple(found.not_enforced),
            hints=tuple(found.hints),
            completion=tuple(found.completion.token_ids) if found.HasField("completion") else None,
            watch=found.watch,
        )
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def thought_from_pb(message: pb.Constraint) -> ThoughtRule | None:
    """What comes before the text, if anything does. Raises InvalidStep."""
    if not message.HasField("thought"):
        return None
    try:
        return from_message(message.thought, ThoughtRule)
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def spec_from_pb(message: pb.Constraint) -> ConstraintSpec:
    """Raises InvalidStep for a kind or a whitespace that this shard does not know."""
    try:
        return ConstraintSpec(
            _KIND_FROM_PB[message.kind],
            message.text,
            _WHITESPACE_FROM_PB[message.whitespace],
            message.lenient,
            any_key_order=message.any_key_order,
            strict=message.strict,
        )
    except KeyError as unknown:
        raise InvalidStep(f"a constraint of kind or whitespace {unknown} is not known") from None
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def updates_from_pb(message: pb.PrefillRequest | pb.DecodeRequest) -> tuple[RunningUpdate, ...]:
    """What the router decided for running sequences. Raises InvalidStep."""
    try:
        return tuple(from_message(update, RunningUpdate) for update in message.updates)
    except ValueError as error:
        raise InvalidStep(str(error)) from error


def _optional(message: Message, name: str) -> int | None:
    return getattr(message, name) if message.HasField(name) else None


def step_to_pb(output: StepOutput, epoch: int) -> pb.StepResponse:
    return pb.StepResponse(
        epoch=epoch,
        generations=[_generation_to_pb(generation) for generation in output.others],
        plain_request_ids=output.plain.request_ids,
        plain_token_ids=output.plain.token_ids,
        plain_logprobs=output.plain.logprobs,
        request_ids=output.request_ids,
        forward_ns=output.forward_ns,
        sample_ns=output.sample_ns,
        total_ns=output.total_ns,
        mask_ns=output.mask_ns,
        num_masked_rows=output.num_masked_rows,
        mask_wait_ns=output.mask_wait_ns,
    )


def _generation_to_pb(generation: Generation) -> pb.Generation:
    message = pb.Generation(
        request_id=generation.request_id,
        tokens=[_token_to_pb(token) for token in generation.tokens],
    )
    if generation.finish_reason is not None:
        message.finish_reason = FINISH_REASONS[generation.finish_reason]
    if generation.num_forced:
        message.num_forced = generation.num_forced
    if generation.is_late:
        message.is_late = True
    if generation.num_drafts:
        message.num_drafts = generation.num_drafts
        message.num_accepted = generation.num_accepted
    if generation.constraint_satisfied is not None:
        message.constraint_satisfied = generation.constraint_satisfied
    if generation.error is not None:
        message.error = generation.error
        message.is_refused = generation.is_refused
    if generation.prompt_logprobs:
        message.prompt_logprobs.extend(generation.prompt_logprobs)
    for top_tokens in generation.prompt_top_tokens:
        message.prompt_top_tokens.add(tokens=_top_to_pb(top_tokens))
    return message


def _token_to_pb(token: SampledToken) -> pb.SampledToken:
    if not token.top_tokens:
        return pb.SampledToken(id=token.token_id, logprob=token.logprob)
    return pb.SampledToken(
        id=token.token_id,
        logprob=token.logprob,
        top_tokens=_top_to_pb(token.top_tokens),
        mask_effect=MASK_EFFECTS[token.mask_effect],
    )


def _top_to_pb(tokens: tuple[TopToken, ...]) -> list[pb.TopToken]:
    return [pb.TopToken(id=token.token_id, logprob=token.logprob) for token in tokens]
