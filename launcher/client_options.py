"""The options of `launcher client` and `launcher query`."""

from typing import Annotated, Optional

import typer

from client.config import DEFAULT_URL

_URL_DEFAULT = f"TANDEM_URL, or {DEFAULT_URL}"
_URL_HELP = "The server: http(s)://, ws(s):// or host:port."

UrlArgument = Annotated[
    Optional[str], typer.Argument(metavar="URL", show_default=_URL_DEFAULT, help=_URL_HELP)
]
ModelArgument = Annotated[
    Optional[str],
    typer.Argument(
        metavar="MODEL", show_default="the only one", help="A model that is served there."
    ),
]
ClientKey = Annotated[
    Optional[str],
    typer.Option("--api-key", show_default="TANDEM_API_KEY", help="The key of a guarded server."),
]
