"""One rank's gRPC channel, and what its failures mean.

It knows no batch. A failed call is a ShardFailed that names the rank, the method and the reason;
where another router has taken the rank over it is Displaced.
"""

import re
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio

from proto.generate_pb2_grpc import TextGenerationServiceStub
from router.request.errors import Displaced, ShardFailed, StartupFailed

_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Reconnects soon, also to a shard that was away for long.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    # No step may run twice, and no proxy stands between the tiers.
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
_HOST_PORT = re.compile(r"[^/]+:\d{1,5}")
_MAX_SOCKET_PATH_LEN = 107
# A shard's error when it is to begin an epoch before its present one.
_LATER_EPOCH = re.compile(r"epoch \d+ is over: epoch \d+ has begun")

Message = TypeVar("Message")
Call: TypeAlias = Callable[..., grpc.aio.UnaryUnaryCall[Any, Message]]


def dial_target(address: str) -> str:
    """The gRPC target of host:port, of a socket's path, or of a unix: url.

    Raises StartupFailed for a path longer than the system's sockets have.
    """
    if not address.startswith("unix:") and _HOST_PORT.fullmatch(address):
        return address
    path = address.removeprefix("unix:")
    if path.startswith("//"):
        path = path[2:]
    if len(path.encode()) > _MAX_SOCKET_PATH_LEN:
        raise StartupFailed(
            f"the shard's socket path {path!r} has {len(path.encode())} bytes; at most "
            f"{_MAX_SOCKET_PATH_LEN} are possible"
        )
    return f"unix:{path}"


class Rank:
    """One rank's channel."""

    def __init__(self, rank: int, address: str) -> None:
        self.name = f"shard {rank} at {address}"
        self.channel = grpc.aio.insecure_channel(dial_target(address), options=_CHANNEL_OPTIONS)
        self.stub: Any = TextGenerationServiceStub(self.channel)

    def call(self, method: str) -> Call[Any]:
        """The stub's method."""
        call: Call[Any] = getattr(self.stub, method)
        return call


async def answer_of(rank: Rank, method: str, call: Any) -> Any:
    """What the rank answers to a call under way. Raises ShardFailed, Displaced."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if _is_displacement(error):
            raise Displaced(
                f"another router has taken over {rank.name} ({error.details()})"
            ) from error
        raise ShardFailed(f"{rank.name}, {method}: {error_line(error)}") from error


def _is_displacement(error: grpc.aio.AioRpcError) -> bool:
    return (
        error.code() is grpc.StatusCode.FAILED_PRECONDITION
        and _LATER_EPOCH.search(error.details() or "") is not None
    )


def error_line(error: grpc.aio.AioRpcError) -> str:
    """The error in a line."""
    return f"{error.code().name}: {error.details() or 'no details'}"
