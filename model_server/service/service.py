"""The gRPC methods; owner of the epoch; domain errors become gRPC codes here."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from model_server.engine.runner import Runner
from model_server.engine.step import StepOutput
from model_server.errors import (
    ConstraintRefused,
    InvalidStep,
    OutOfMemory,
    RanksDiverged,
    ShardError,
    StaleEpoch,
    UnknownBatch,
)
from model_server.masking.constraint_cache import ConstraintCache
from model_server.service import wire
from model_server.tracing import NO_TRACES, StepCall, StepTracer
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc
from proto.contract import ModelInfo

_log = logging.getLogger(__name__)

# The first class that fits decides, so the more special ones stand first.
_CODES: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (UnknownBatch, grpc.StatusCode.NOT_FOUND),
    (StaleEpoch, grpc.StatusCode.FAILED_PRECONDITION),
    (InvalidStep, grpc.StatusCode.INVALID_ARGUMENT),
    (OutOfMemory, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (RanksDiverged, grpc.StatusCode.ABORTED),
    (ShardError, grpc.StatusCode.INTERNAL),
)

# Generic for the type checker alone, hence in quotes.
MethodHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"
Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[MethodHandler]]


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every unary method. `on_fatal` is called once an error makes the shard unfit."""

    def __init__(self, on_fatal: Callable[[str], None]) -> None:
        self._on_fatal = on_fatal

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        handler = await continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = handler_call_details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            self._guarded(method, handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _guarded(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            try:
                return await call(request, context)
            except ShardError as error:
                if isinstance(error, RanksDiverged):
                    self._on_fatal(f"{method}: {error}")
                await context.abort(_code_of(error), str(error))
            except Exception as error:
                # What is left is a bug or a broken device; abort() below raises in its turn.
                if isinstance(error, grpc.aio.AbortError):
                    raise
                _log.exception("%s failed", method)
                self._on_fatal(f"{method}: {type(error).__name__}: {error}")
                await context.abort(
                    grpc.StatusCode.INTERNAL, f"{method}: {type(error).__name__}: {error}"
                )

        return guarded


def _code_of(error: ShardError) -> grpc.StatusCode:
    return next(code for kind, code in _CODES if isinstance(error, kind))


T = TypeVar("T")
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class TextGenerationService(pb_grpc.TextGenerationServiceServicer):
    """Owner of the epoch; everything else is the runner's. `device_thread` has one worker.

    `constraints` exist on rank 0 alone.
    """

    def __init__(
        self,
        runner: Runner,
        info: ModelInfo,
        urls: tuple[str, ...],
        device_thread: Executor,
        tracer: StepTracer = NO_TRACES,
        constraints: ConstraintCache | None = None,
    ) -> None:
        self._runner = runner
        self._info = info
        self._urls = urls
        self._device_thread = device_thread
        self._tracer = tracer
        self._constraints = constraints
        self._epoch = 0

    async def Health(self, request: pb.HealthRequest, context: Context) -> pb.HealthResponse:
        return pb.HealthResponse()

    async def Info(self, request: pb.InfoRequest, context: Context) -> pb.InfoResponse:
        return wire.info_to_pb(self._info)

    async def ServiceDiscovery(
        self, request: pb.ServiceDiscoveryRequest, context: Context
    ) -> pb.ServiceDiscoveryResponse:
        return wire.discovery_to_pb(self._urls)

    async def Warmup(self, request: pb.WarmupRequest, context: Context) -> pb.WarmupResponse:
        self._require_epoch(request.epoch)
        call = wire.warmup_from_pb(request)
        limits = await self._on_device(
            lambda: self._runner.warmup(
                call.max_step_tokens, call.max_batch_size, call.max_total_len, call.num_blocks
            )
        )
        return wire.limits_to_pb(limits, request.epoch)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.StepResponse:
        self._require_epoch(request.epoch)
        call = wire.prefill_from_pb(request)
        batch_id = call.batch_id if call.cached_batch_id is None else call.cached_batch_id
        output = await self._step(
            lambda: self._runner.prefill(
                call.batch_id, call.new, call.cached_batch_id, call.updates
            ),
            StepCall((batch_id,), call.new, call.updates, context.invocation_metadata()),
        )
        return wire.step_to_pb(output, request.epoch)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.StepResponse:
        self._require_epoch(request.epoch)
        call = wire.decode_from_pb(request)
        output = await self._step(
            lambda: self._runner.decode(call.batch_ids, call.updates),
            StepCall(call.batch_ids, (), call.updates),
        )
        return wire.step_to_pb(output, request.epoch)

    async def FilterBatch(
        self, request: pb.FilterBatchRequest, context: Context
    ) -> pb.FilterBatchResponse:
        self._require_epoch(request.epoch)
        batch_id, request_ids = request.batch_id, tuple(request.request_ids)
        kept_ids = await self._on_device(lambda: self._runner.filter(batch_id, request_ids))
        self._tracer.filtered(batch_id, kept_ids)
        return wire.filtered_to_pb(batch_id, kept_ids, request.epoch)

    async def PrepareConstraint(
        self, request: pb.PrepareConstraintRequest, context: Context
    ) -> pb.PrepareConstraintResponse:
        spec = wire.spec_from_pb(request.constraint)
        if self._constraints is None:
            raise ConstraintRefused("this rank compiles no constraints; rank 0 does")
        translation = wire.translation_from_pb(request.constraint)
        prepared = await asyncio.wrap_future(self._constraints.prepare(spec, translation))
        return wire.prepared_to_pb(prepared.compile_ns, was_cached=prepared.was_cached)

    async def ClearCache(
        self, request: pb.ClearCacheRequest, context: Context
    ) -> pb.ClearCacheResponse:
        batch_id = request.batch_id if request.HasField("batch_id") else None
        if batch_id is None:
            self._begin_epoch(request.epoch)
        else:
            self._require_epoch(request.epoch)
        await self._on_device(lambda: self._runner.clear(batch_id))
        self._tracer.cleared(batch_id)
        return wire.cleared_to_pb(request.epoch)

    def _begin_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise StaleEpoch(f"epoch {epoch} is over: epoch {self._epoch} has begun")
        self._epoch = epoch

    def _require_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            raise StaleEpoch(f"epoch {epoch} is not the present one, {self._epoch}")

    async def _step(self, work: Callable[[], StepOutput], call: StepCall) -> StepOutput:
        begun_ns = time.perf_counter_ns()
        try:
            output = await self._on_device(work)
        except Exception as error:
            self._tracer.failed(call, time.perf_counter_ns() - begun_ns, error)
            raise
        self._tracer.stepped(call, output)
        if not self._runner.is_prepared:
            loop = asyncio.get_running_loop()
            # Once this answer is on its way.
            loop.call_soon(loop.run_in_executor, self._device_thread, self._runner.prepare)
        return output

    async def _on_device(self, work: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._device_thread, work)
