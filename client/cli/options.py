"""The options of `launcher client` and `launcher query`."""

from pathlib import Path
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

QueryFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A program of the query language; - for stdin.")
]
QueryUrl = Annotated[
    Optional[str], typer.Option("--url", show_default=_URL_DEFAULT, help=_URL_HELP)
]
QueryModel = Annotated[
    Optional[str],
    typer.Option(
        "--model",
        show_default="the program's, else the only one",
        help="A model that is served there.",
    ),
]
QueryVariables = Annotated[
    Optional[list[str]],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable of the program: what VALUE says as JSON, or else its text. Repeatable.",
    ),
]
QueryTrace = Annotated[
    Optional[Path],
    typer.Option("--trace", metavar="F", help="A file for every call of the model, as JSON lines."),
]
QueryJson = Annotated[
    bool, typer.Option("--json", help="Print each result as a JSON object in a line of its own.")
]
