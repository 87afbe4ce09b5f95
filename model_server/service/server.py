"""The gRPC server around the service: address, reflection, standard health, clean-up.

The standard health service is on, so that container probes work without our proto file, and at a
socket reflection, for grpcurl.

The secret that a router has to show to a shard which listens at a port.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from model_server.errors import ConfigRefused, ShardError
from model_server.service.service import (
    Continuation,
    ErrorInterceptor,
    Failures,
    Lease,
    MethodHandler,
    TextGenerationService,
)
from model_server.service.step_socket import taking_steps
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc


class ShardToken(grpc.aio.ServerInterceptor):
    """Refuses every call without the token, but for the standard health service."""

    def __init__(self, token: str) -> None:
        self._digest = _digest(f"Bearer {token}")

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        if handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return await continuation(handler_call_details)
        shown = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        text = shown if isinstance(shown, str) else shown.decode(errors="replace")
        if compare_digest(_digest(text), self._digest):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    reason = "the router's SHARD_TOKEN is missing or not the shard's"
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()


# The prompts of a whole batch travel in one message.
_MAX_MESSAGE_BYTES = 2**31 - 1
# A step names the trace of each new request; gRPC's own limit, 8 kB, holds some 60 of them.
_MAX_METADATA_BYTES = 2**20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", _MAX_METADATA_BYTES),
    ("grpc.so_reuseport", 0),
)
_STOP_GRACE_S = 1.0
LEASE_S = 10.0
_MAX_SOCKET_BYTES = 107
_STEP_SUFFIX = ".steps"


@contextlib.asynccontextmanager
async def listening(
    service: TextGenerationService,
    address: str | Path,
    on_fatal: Callable[[ShardError], None],
    *,
    token: str | None = None,
    lease_s: float = LEASE_S,
) -> AsyncIterator[None]:
    """Serve at `address` (a socket's path, or "host:port") inside the `async with`.

    Whoever calls must show the `token`, if there is one. At a port there is neither reflection nor
    a step socket, which else is beside the other one. What a router has is freed when it says
    nothing for `lease_s`.

    A socket left behind by a dead process is replaced; one that somebody listens on, or a port
    in use, raises ConfigRefused. The socket's file is removed at the end.
    """
    if isinstance(address, Path):
        _remove_stale(address)
    lease = Lease(lease_s)
    failures = Failures(on_fatal)
    shown = [] if token is None else [ShardToken(token)]
    server = grpc.aio.server(
        interceptors=[*shown, ErrorInterceptor(failures, lease)], options=_OPTIONS
    )
    pb_grpc.add_TextGenerationServiceServicer_to_server(service, server)
    name = pb.DESCRIPTOR.services_by_name["TextGenerationService"].full_name
    probe = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(probe, server)
    if isinstance(address, Path):
        names = (name, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
    try:
        server.add_insecure_port(f"unix:{address}" if isinstance(address, Path) else address)
    except RuntimeError as error:
        raise ConfigRefused(f"cannot listen at {address}: it is in use or not ours") from error
    await probe.set("", health_pb2.HealthCheckResponse.SERVING)
    await probe.set(name, health_pb2.HealthCheckResponse.SERVING)
    steps: contextlib.AbstractAsyncContextManager[None] = contextlib.nullcontext()
    if isinstance(address, Path) and token is None:
        path = address.with_name(f"{address.name}{_STEP_SUFFIX}")
        if len(os.fsencode(path)) <= _MAX_SOCKET_BYTES:
            service.step_socket = str(path.absolute())
            loop = asyncio.get_running_loop()

            def on_fatal_step(error: ShardError) -> None:
                loop.call_soon_threadsafe(on_fatal, error)

            of_steps = Failures(on_fatal_step)
            steps = taking_steps(path, service.device_thread, service.take, of_steps, lease)
    async with steps:
        await server.start()
        watching = asyncio.ensure_future(lease.run(service.release))
        try:
            yield
        finally:
            watching.cancel()
            await server.stop(_STOP_GRACE_S)
            if isinstance(address, Path):
                _remove(address)


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    if len(os.fsencode(path)) > _MAX_SOCKET_BYTES:
        raise ConfigRefused(
            f"socket path {path} is too long: a unix socket takes {_MAX_SOCKET_BYTES} bytes"
        )
    if not path.parent.is_dir():
        raise ConfigRefused(f"socket path {path}: its folder does not exist")
    if not path.exists():
        return
    if not path.is_socket():
        raise ConfigRefused(f"socket path {path} is taken by something else than a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise ConfigRefused(f"socket {path} is in use by another process")
