"""The commands that talk to a server: `launcher client`, `query`, `top` and `batch`.

Each imports what it needs once it is called: `launcher serve`, which has them as well, would take
half a second longer to start.
"""

# ruff: noqa: PLC0415

from pathlib import Path
from typing import Annotated

import typer

from client.config import DEFAULT_URL, read_config
from client.errors import BadInput, InvalidRequest

_URL_DEFAULT = f"TANDEM_URL, or {DEFAULT_URL}"
_URL_HELP = "The server: http(s)://, ws(s):// or host:port."

UrlArgument = Annotated[
    str | None, typer.Argument(metavar="URL", show_default=_URL_DEFAULT, help=_URL_HELP)
]
ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", show_default="the only one", help="A model that is served there."
    ),
]
ClientKey = Annotated[
    str | None,
    typer.Option("--api-key", show_default="TANDEM_API_KEY", help="The key of a guarded server."),
]

QueryFile = Annotated[
    str, typer.Argument(metavar="FILE", help="A program of the query language; - for stdin.")
]
QueryUrl = Annotated[str | None, typer.Option("--url", show_default=_URL_DEFAULT, help=_URL_HELP)]
QueryModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        show_default="the program's, else the only one",
        help="A model that is served there.",
    ),
]
QueryVariables = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A variable of the program: what VALUE says as JSON, or else its text. Repeatable.",
    ),
]
QueryTrace = Annotated[
    Path | None,
    typer.Option("--trace", metavar="F", help="A file for every call of the model, as JSON lines."),
]
QueryJson = Annotated[
    bool, typer.Option("--json", help="Print each result as a JSON object in a line of its own.")
]


def _server(url: str | None, key: str | None) -> tuple[str, str | None]:
    """Its URL and key: those given, or those of the environment; a key may be in the URL."""
    from client.lmtp.address import read_address

    config = read_config()
    place = url or config.url
    return place, key or read_address(place).key or config.api_key


def client(
    url: UrlArgument = None,
    model: ModelArgument = None,
    api_key: ClientKey = None,
) -> None:
    """Chat with a served model: type a message, see the answer's tokens as they come.

    Parameters at a line's end: Tell me a story max_tokens=50 temperature=0.7 (/help: all of them).

    A model without a chat template goes on with texts as they are; so does /raw.

    Ctrl-C stops an answer; /quit leaves; /help lists the commands.

    Where stdin is no terminal, each line is a message, and stdout gets the answers alone.

    Exit codes: 0; 1 if there is no server, or if such a line was wrong or not answered; 130 after
    Ctrl-C.
    """
    from client.cli.chat import run_client

    place, key = _server(url, api_key)
    raise typer.Exit(run_client(place, key, model, read_config().state_folder))


def top(
    url: UrlArgument = None,
    period: Annotated[
        float, typer.Option("--period", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
    count: Annotated[
        int | None, typer.Option("--count", min=1, show_default="until Ctrl-C", help="Looks.")
    ] = None,
    api_key: ClientKey = None,
) -> None:
    """Watch a server's load: batch, queue, tokens a second, KV cache, percentiles of latencies.

    Exit codes: 0; 1 if there is no server; 130 after Ctrl-C.
    """
    from client.cli.top import top as run_top

    place, key = _server(url, api_key)
    raise typer.Exit(run_top(place, key, period, count))


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN", help="JSON lines, each a request.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A file for the answers.")],
    url: QueryUrl = None,
    batch_id: Annotated[
        str | None, typer.Option("--id", help="Go on with this batch; nothing is uploaded.")
    ] = None,
    api_key: ClientKey = None,
) -> None:
    """Have the requests of a file computed behind all others, and get their answers in a file.

    The server needs --batch-file. The batch goes on without this command, which may be ended and
    started again with --id. What failed is written to OUT with .errors before its suffix.

    Exit codes: 0 all lines are answered; 1 some failed, or no server; 130 after Ctrl-C.
    """
    from client.cli.batch import run_batch

    place, key = _server(url, api_key)
    raise typer.Exit(run_batch(source, target, place, key, batch_id))


def query(
    file: QueryFile,
    url: QueryUrl = None,
    model: QueryModel = None,
    variables: QueryVariables = None,
    trace: QueryTrace = None,
    as_json: QueryJson = False,
    api_key: ClientKey = None,
) -> None:
    """Run a program of the query language against a server.

    A program is Python code, and runs here with your rights: run none that you would not run as a
    script. The server runs no part of it.

    On a terminal its prompt fills in live, then its results are shown; --json prints an object for
    each: prompt, variables, distributions, usage, and a row for each request that was sent.

    Exit codes: 0 done; 1 no server, or it refused or failed; 2 the program or the command is wrong;
    3 no text was found that keeps the program's conditions; 130 after Ctrl-C.
    """
    from client.cli.query import QuerySettings, read_variables
    from client.cli.query import query as run_query
    from client.cli.terminal import ExitCode

    try:
        place, key = _server(url, api_key)
        settings = QuerySettings(
            file=file,
            variables=read_variables(variables or []),
            url=place,
            api_key=key,
            model=model,
            trace=trace,
            as_json=as_json,
        )
    except (BadInput, InvalidRequest) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitCode.AT_FAULT) from None
    raise typer.Exit(run_query(settings))
