"""The commands that talk to a server: `launcher client`."""

import asyncio

import typer

from client.config import read_config
from client.lmtp.address import read_address
from launcher import client_options
from launcher.client import ClientSettings, run_client


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
