"""The client's settings from its environment; no other file of the client reads it.

TANDEM_URL      the server's URL; default http://127.0.0.1:3000
TANDEM_API_KEY  the server's key, if it requires one
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:3000"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The server's URL and key, and a folder for histories."""

    url: str
    api_key: str | None
    state_folder: Path


def read_config(environ: Mapping[str, str] | None = None) -> ClientConfig:
    """The settings in `environ`, the process's by default; empty variables are ignored."""
    environ = os.environ if environ is None else environ
    state_home = environ.get("XDG_STATE_HOME", "")
    return ClientConfig(
        url=environ.get("TANDEM_URL", "").strip() or DEFAULT_URL,
        api_key=environ.get("TANDEM_API_KEY", "").strip() or None,
        state_folder=(Path(state_home) if state_home else Path.home() / ".local/state") / "tandem",
    )
