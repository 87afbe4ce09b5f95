"""The interceptor that turns the shard's errors into gRPC status codes.

An unexpected error is logged with its traceback and becomes INTERNAL. When
it leaves the device or the other ranks in an unknown state, the shard stops as well: a process
that answers wrongly is worse than one that is gone.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from model_server.errors import (
    InvalidStep,
    OutOfMemory,
    RanksDiverged,
    ShardError,
    StaleEpoch,
    UnknownBatch,
)

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
