"""The commands that talk to a server: `launcher client` and `launcher query`."""

import asyncio

import typer

from client.cli import options as client_options
from client.cli.client import ClientSettings, run_client
from client.cli.query import ExitCode, QuerySettings, read_variables
from client.cli.query import query as run_query
from client.config import read_config
from client.errors import InvalidRequest
from client.lmtp.address import read_address
from launcher.errors import BadSetting


def client(
    url: client_options.UrlArgument = None,
    model: client_options.ModelArgument = None,
    api_key: client_options.ClientKey = None,
) -> None:
    """Talk to a served model: type a prompt, see its tokens as they come.

    Parameters at a line's end: Once upon a time max_tokens=50 temperature=0.7 (/help: all of them).

    Ctrl-C cancels what is running; /quit leaves; /info tells of the server.

    Where stdin is no terminal, each line is a prompt, and stdout gets the answers alone.

    Exit codes: 0; 1 if there is no server, or if such a line was wrong or not answered; 130 after
    Ctrl-C.
    """
    config = read_config()
    place = url or config.url
    settings = ClientSettings(
        url=place,
        api_key=api_key or read_address(place).key or config.api_key,
        model=model,
        state_folder=config.state_folder,
    )
    raise typer.Exit(asyncio.run(run_client(settings)))


def query(
    file: client_options.QueryFile,
    url: client_options.QueryUrl = None,
    model: client_options.QueryModel = None,
    variables: client_options.QueryVariables = None,
    trace: client_options.QueryTrace = None,
    as_json: client_options.QueryJson = False,
    api_key: client_options.ClientKey = None,
) -> None:
    """Run a program of the query language against a server.

    On a terminal its prompt fills in live, then its results are told; --json prints an object for
    each: prompt, variables, distributions, usage, and a row for each request that was sent.

    Exit codes: 0 done; 1 no server, or it refused or failed; 2 the program or the command is wrong;
    3 no text was found that keeps the program's conditions; 130 after Ctrl-C.
    """
    config = read_config()
    place = url or config.url
    try:
        settings = QuerySettings(
            file=file,
            variables=read_variables(variables or []),
            url=place,
            api_key=api_key or read_address(place).key or config.api_key,
            model=model,
            trace=trace,
            as_json=as_json,
        )
    except (BadSetting, InvalidRequest) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(ExitCode.AT_FAULT) from None
    raise typer.Exit(run_query(settings))
