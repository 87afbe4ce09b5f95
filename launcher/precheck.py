"""What the router would refuse, told before minutes are spent on loading a model."""

from collections.abc import Mapping
from pathlib import Path

from launcher.errors import BadSetting
from launcher.settings import ServeSettings
from processes.settings import BadConfig
from router.config import RouterConfig, read_config
from router.http.server.tls import server_tls
from router.request.errors import StartupFailed
from router.text.tokenizer import Tokenizer


def check_router(settings: ServeSettings, environ: Mapping[str, str]) -> None:
    """Reads the router's flags and its TLS files as it will. Raises BadSetting."""
    try:
        server_tls(_config(settings, environ, Path("tokenizer")))
    except BadConfig as error:
        raise BadSetting(str(error)) from error


def check_tokenizer(settings: ServeSettings, environ: Mapping[str, str], folder: Path) -> None:
    """Reads the tokenizer of a model's folder as the router will. Raises BadSetting."""
    config = _config(settings, environ, folder)
    try:
        Tokenizer.load(folder, config.tokenizer_config_path).close()
    except StartupFailed as error:
        raise BadSetting(str(error)) from error


def _config(settings: ServeSettings, environ: Mapping[str, str], folder: Path) -> RouterConfig:
    _, _, _, *flags = settings.router_argv(folder)
    return read_config(flags, settings.router_environ(environ))
