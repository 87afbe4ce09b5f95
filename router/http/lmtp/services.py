"""What the sockets are made over, and what a client may do with one."""

from dataclasses import dataclass, field

from router.engine.infer import Infer
from router.http.lmtp.prompts import BufferLimits, Prompts
from router.http.request_validator import RequestValidator
from router.http.server_info import ServerInfo
from router.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class SocketLimits:
    """What one socket may do. `max_beams` are those of one search.

    Clients get `max_message_len` in HELLO; the connection enforces it. More than
    `max_waiting_len` characters are not kept for a client that does not read them.
    """

    max_message_len: int = 1 << 23
    max_streams: int = 256
    max_beams: int = 32
    max_waiting_len: int = 1 << 16
    buffers: BufferLimits = field(default_factory=BufferLimits)


@dataclass(frozen=True, slots=True)
class LmtpServices:
    """Shared by all sockets."""

    infer: Infer
    validator: RequestValidator
    prompts: Prompts
    info: ServerInfo
    metrics: Metrics
    limits: SocketLimits

    @property
    def eos_id(self) -> int | None:
        """The token that ends what nothing else ends, if the model has one."""
        return next(iter(self.info.limits.eos_token_ids), None)
