"""What the router would refuse, told before minutes are spent on loading a model."""

from collections.abc import Mapping
from pathlib import Path

from launcher.errors import BadSetting
from launcher.settings import ServeSettings
from router.config import read_config
from router.errors import StartupFailed
from router.knobs import BadConfig
from router.tls import server_tls


def check_router(settings: ServeSettings, environ: Mapping[str, str]) -> None:
    """Reads the router's flags and its TLS files as it will. Raises BadSetting."""
    _, _, _, *flags = settings.router_argv(Path("tokenizer"))
    try:
        server_tls(read_config(flags, settings.router_environ(environ)))
    except (BadConfig, StartupFailed) as error:
        raise BadSetting(str(error)) from error
