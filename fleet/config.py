"""Every knob of the front, once. The only file of the fleet that reads argv and environment.

What stands behind `--` on the command line are flags of `launcher serve`, for every model's server.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from router.knobs import (
    BadConfig,
    api_key,
    file,
    knob,
    number,
    one_of,
    origin,
    parser_of,
    read_knobs,
    seconds,
    several,
    switch,
    whole,
)

AUTO = "auto"
_MODELS = "models"
_HTTP = "HTTP"
_ACCESS = "who may ask, and how"
_TIME = "time"
_LOGS = "logs"


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        raise BadConfig("must be a folder that exists")
    return path.resolve()


def _share(text: str) -> float:
    share = number(text)
    if not 0.0 < share <= 1.0:
        raise BadConfig("must be above 0 and at most 1")
    return share


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """What `python -m fleet` was told. `_s` and timeouts in seconds."""

    models_folder: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "with auto: the models below this folder; absent: below the working one", _folder,
        group=_MODELS,
    )  # fmt: skip
    hub_models: bool = knob(True, "with auto: the hub's models too", switch, group=_MODELS)
    max_loaded_models: int = knob(1, "models in memory at once", whole(1), group=_MODELS)
    model_load_timeout: float = knob(
        300.0, "seconds that a request waits for its model", seconds, group=_MODELS
    )
    model_idle_timeout: float | None = knob(
        None, "seconds without requests after which a model is unloaded", seconds, group=_MODELS
    )
    model_turn: float = knob(
        10.0,
        "seconds that a busy model takes requests while another one waits for its room",
        seconds,
        group=_MODELS,
    )
    model_retry_after: float = knob(
        30.0, "seconds before a model that failed is tried again", seconds, group=_MODELS
    )
    cuda_memory_fraction: float = knob(
        0.9, "share of a GPU's memory that all models together may fill", _share, group=_MODELS
    )
    hostname: str = knob("127.0.0.1", "address to bind", group=_HTTP, env=False)
    port: int = knob(3000, "port to bind; 0 takes a free one", whole(0, 65535), group=_HTTP)
    http_uds: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "bind this unix socket instead", Path, group=_HTTP
    )
    socket_message_limit: int = knob(
        1 << 23, "bytes of a message of an LMTP socket", whole(1024), group=_HTTP
    )
    socket_ping_interval: float = knob(
        20.0,
        "seconds between two pings on an LMTP socket, and to answer one, before it is closed",
        seconds,
        group=_HTTP,
    )
    max_socket_streams: int = knob(
        256, "most streams that an LMTP socket may have open", whole(1), group=_HTTP
    )
    payload_limit: int = knob(2_000_000, "bytes of a request's body", whole(1), group=_HTTP)
    api_key: tuple[str, ...] = knob(
        (),
        "keys that requests must bring, between commas",
        several(api_key),
        group=_ACCESS,
        kind="list",
        secret=True,
    )
    protect_metrics: bool = knob(
        False, "/metrics wants a key too", switch, group=_ACCESS, kind="switch"
    )
    cors_allow_origin: tuple[str, ...] = knob(
        ("*",), "origins whose pages may ask", several(origin), group=_ACCESS, kind="list"
    )
    ssl_certfile: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "serve HTTPS with this chain of certificates (PEM)", file, group=_ACCESS
    )
    ssl_keyfile: Path | None = knob(  # noqa: RUF009 (a dataclass field, by our name)
        None, "the certificate's private key (PEM)", file, group=_ACCESS
    )
    ssl_keyfile_password: str | None = knob(
        None, "what opens the private key", group=_ACCESS, secret=True
    )
    header_limit: int = knob(32_768, "bytes of a request's headers", whole(1024), group=_ACCESS)
    header_timeout: float = knob(30.0, "seconds for the headers", seconds, group=_ACCESS)
    body_timeout: float = knob(30.0, "seconds for 16 KiB of the body", seconds, group=_ACCESS)
    write_timeout: float = knob(
        30.0, "seconds after which a client that does not read is cut off", seconds, group=_ACCESS
    )
    graceful_termination_timeout: float = knob(
        90.0, "seconds that running requests get after the first signal", seconds, group=_TIME
    )
    parent_pid: int | None = knob(
        None, "drain and stop once this process is no longer the parent", whole(1), group=_TIME,
        env=False,
    )  # fmt: skip
    log_level: str = knob(
        "info",
        "least severe lines to log",
        one_of("debug", "info", "warning", "error"),
        group=_LOGS,
    )
    json_output: bool = knob(False, "log JSON lines", group=_LOGS, kind="switch")


@dataclass(frozen=True, slots=True)
class Told:
    """A command line: the knobs, the models, the flags of every model's server."""

    config: FleetConfig
    models: tuple[str, ...]
    child_flags: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def takes_any(self) -> bool:
        """Whether requests may name models that the command line does not."""
        return self.models == (AUTO,)


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Told:
    """What a command line without the program's name, and an environment, say. Raises BadConfig."""
    environ = os.environ if environ is None else environ
    own, child_flags = list(argv), []
    if "--" in own:
        cut = own.index("--")
        own, child_flags = own[:cut], own[cut + 1 :]
    models, flags = _take_models(own)
    parser = parser_of(
        fields(FleetConfig),
        "python -m fleet",
        "Tandem's front for several models: --model ID ..., or --model auto, and behind -- the "
        "flags of `launcher serve` for each.",
    )
    config = read_knobs(FleetConfig, flags, environ, parser)
    if not models:
        raise BadConfig("--model: at least one must be given; see --help")
    return Told(config, tuple(models), tuple(child_flags), environ)


def _take_models(argv: list[str]) -> tuple[list[str], list[str]]:
    """The values of --model, which may hold what others separate words by; and all the rest."""
    models, rest, words = [], [], iter(argv)
    for word in words:
        if word == "--model":
            models.append(next(words, ""))
        else:
            rest.append(word)
    return models, rest
