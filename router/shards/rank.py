"""One rank's channel: where to dial it, calls under way, and what their failures mean.

It knows no epoch and no step.
"""

import re
from typing import Any

import grpc
import grpc.aio

from processes.tracing import Metadata
from proto.generate_pb2_grpc import TextGenerationServiceStub
from router.request.errors import Displaced, ShardFailed, ShardUnfit, StartupFailed

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


class Rank:
    """One rank's channel. A failed call names the rank, the method and the reason."""

    def __init__(self, rank: int, address: str, token: str | None = None) -> None:
        self.name = f"shard {rank} at {address}"
        self.channel = grpc.aio.insecure_channel(dial_target(address), options=_CHANNEL_OPTIONS)
        self._stub = TextGenerationServiceStub(self.channel)
        self._token: Metadata = () if token is None else (("authorization", f"Bearer {token}"),)

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
        """The answer to a call under way. Raises ShardFailed: ShardUnfit, Displaced among them."""
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            is_over = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            if is_over and _LATER_EPOCH.search(error.details() or ""):
                raise Displaced(
                    f"another router has taken over {self.name} ({error.details()})"
                ) from error
            is_late = error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            kind = ShardUnfit if is_late else ShardFailed
            raise kind(f"{self.name}, {method}: {error_line(error)}") from error


def error_line(error: grpc.aio.AioRpcError) -> str:
    """The code and the details of a failed call."""
    return f"{error.code().name}: {error.details() or 'no details'}"
