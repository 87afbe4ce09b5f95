"""A client on a terminal, in front of a served model."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.client.cli.on_terminal import Terminal, on_a_terminal
from tests.integration.server import RunningServer


@asynccontextmanager
async def talking(server: RunningServer, folder: Path) -> AsyncIterator[Terminal]:
    async with on_a_terminal(server.url, XDG_STATE_HOME=str(folder)) as terminal:
        await terminal.read_until("try /help")
        await terminal.read_until("> ")
        yield terminal
