"""The gRPC server around the service: address, reflection, standard health, clean-up.

The standard health service is on, so that container probes work without our proto file, and at a
socket reflection, for grpcurl.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from model_server.errors import ConfigRefused
from model_server.service.lease import Lease
from model_server.service.service import ErrorInterceptor, TextGenerationService
from model_server.service.shard_token import ShardToken
from proto import generate_pb2 as pb
from proto import generate_pb2_grpc as pb_grpc

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


@contextlib.asynccontextmanager
async def listening(
    service: TextGenerationService,
    address: str | Path,
    on_fatal: Callable[[str], None],
    *,
    token: str | None = None,
    lease_s: float = LEASE_S,
) -> AsyncIterator[None]:
    """Serve at `address` (a socket's path, or "host:port") inside the `async with`.

    Whoever calls must show the `token`, if there is one. At a port there is no reflection.
    What a router has is freed when it says nothing for `lease_s`.

    A socket left behind by a dead process is replaced; one that somebody listens on, or a port
    in use, raises ConfigRefused. The socket's file is removed at the end.
    """
    if isinstance(address, Path):
        _remove_stale(address)
    lease = Lease(lease_s)
    shown = [] if token is None else [ShardToken(token)]
    server = grpc.aio.server(
        interceptors=[*shown, ErrorInterceptor(on_fatal, lease)], options=_OPTIONS
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
