"""The knobs of every HTTP front, the router's and that of several models: one text for both.

It reads neither the command line nor the environment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from processes.settings import (
    BadConfig,
    Whole,
    api_key,
    file,
    knob,
    one_of,
    origin,
    seconds,
    several,
)

LOG_LEVELS = ("debug", "info", "warning", "error", "off")
_TGIS_LEVELS: Mapping[str, str] = MappingProxyType({"trace": "debug", "warn": "warning"})
HTTP = "HTTP"
ACCESS = "who may ask, and how"
TIME = "time"
LOGS = "logs and telemetry"


def _log_level(text: str) -> str:
    """TGI's variable holds levels of its parts, too, which are none of ours."""
    levels = [word.strip().lower() for word in text.split(",") if "=" not in word] or ["info"]
    return str(one_of(*LOG_LEVELS)(_TGIS_LEVELS.get(levels[0], levels[0])))


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Where a front listens, whom it lets in, how long it is patient. Timeouts in seconds.

    Raises BadConfig when knobs contradict each other.
    """

    hostname: str = knob(
        "127.0.0.1", "address to bind; 0.0.0.0 for every interface", group=HTTP, env=False
    )
    port: int = knob(
        3000,
        "port to bind; 0 takes a free one and logs it",
        Whole(0, 65535),
        group=HTTP,
        aliases=("aip_http_port",),
    )
    http_uds: Path | None = knob(
        None,
        "bind this unix socket, for this user alone, instead of an address and a port",
        Path,
        group=HTTP,
    )
    payload_limit: int = knob(2_000_000, "bytes of a request's body, at most", Whole(1), group=HTTP)
    socket_message_limit: int = knob(
        8_388_608, "bytes of a WebSocket message, at most", Whole(1024), group=HTTP
    )
    max_socket_streams: int = knob(
        256, "most streams that a WebSocket may have open", Whole(1), group=HTTP
    )

    api_key: tuple[str, ...] = knob(
        (),
        "keys, between commas or by repeating the flag; every request but those for health and "
        "metrics must bring one. The variable is safer: everybody on the machine sees flags",
        several(api_key),
        group=ACCESS,
        kind="list",
        secret=True,
    )
    protect_metrics: bool = knob(False, "/metrics wants a key too", group=ACCESS, kind="switch")
    cors_allow_origin: tuple[str, ...] = knob(
        ("*",),
        "origins whose pages may ask, between commas or by repeating the flag",
        several(origin),
        group=ACCESS,
        kind="list",
    )
    ssl_certfile: Path | None = knob(
        None, "serve HTTPS with this chain of certificates (PEM)", file, group=ACCESS
    )
    ssl_keyfile: Path | None = knob(None, "the certificate's private key (PEM)", file, group=ACCESS)
    ssl_keyfile_password: str | None = knob(
        None, "what opens the private key; better by its variable", group=ACCESS, secret=True
    )
    header_limit: int = knob(
        32_768, "bytes of a request's headers, at most", Whole(1024), group=ACCESS
    )
    header_timeout: float = knob(
        30.0, "seconds that a client may take to send the headers", seconds, group=ACCESS
    )
    body_timeout: float = knob(
        30.0, "seconds in which 16 KiB of the body must come, or the rest", seconds, group=ACCESS
    )
    write_timeout: float = knob(
        30.0,
        "seconds after which a client that does not take its answer is cut off",
        seconds,
        group=ACCESS,
    )
    socket_ping_interval: float = knob(
        20.0,
        "seconds between two pings on a WebSocket, and to answer one, before it is closed",
        seconds,
        group=ACCESS,
    )

    graceful_termination_timeout: float = knob(
        90.0, "seconds that running requests get after the first signal", seconds, group=TIME
    )
    parent_pid: int | None = knob(
        None,
        "drain and stop once this process is no longer the parent",
        Whole(1),
        group=TIME,
        env=False,
    )
    log_level: str = knob(
        "info",
        "least severe lines to log, or off; trace and warn as well, and levels of TGI's parts are "
        "passed over (info,text_generation_router=debug)",
        _log_level,
        group=LOGS,
    )
    json_output: bool = knob(False, "log JSON lines", group=LOGS, kind="switch")

    def __post_init__(self) -> None:
        if (self.ssl_certfile is None) is not (self.ssl_keyfile is None):
            given, missing = "--ssl-certfile", "--ssl-keyfile"
            if self.ssl_certfile is None:
                given, missing = missing, given
            raise BadConfig(f"{given} needs {missing} beside it")
        if self.ssl_keyfile_password is not None and self.ssl_keyfile is None:
            raise BadConfig("--ssl-keyfile-password needs --ssl-certfile and --ssl-keyfile")
