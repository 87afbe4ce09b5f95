"""Selects the model of a query: a Model, a model's name, or a server."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from client.calls import Model
from client.config import read_config
from client.lmtp.address import read_address
from client.lmtp.connection import OnNotice
from client.lmtp.model import LmtpModel, ignore_notice
from client.query.errors import BadProgram
from client.query.running.session import surroundings


@dataclass(frozen=True, slots=True)
class Server:
    """A served model. `name` None: the only model there; `key`: the server's API key, if any.

    `url` None: TANDEM_URL of the environment, or http://127.0.0.1:3000. `on_notice` is called with
    notices of the server: queued, loading, draining.
    """

    name: str | None = None
    url: str | None = None
    key: str | None = None
    on_notice: OnNotice = ignore_notice


# A Model, a Server, a URL (it has a ://), or the name of a model at the default URL.
ModelLike: TypeAlias = Model | Server | str


def model(name: str | None = None, *, url: str | None = None, key: str | None = None) -> Server:
    """A model for `from` clauses and `model=`: its name, the server's URL and key."""
    return Server(name, url, key)


@dataclass(frozen=True, slots=True)
class Opened:
    """A connected model, and the name that is sent with every call."""

    model: Model
    name: str | None = None


@asynccontextmanager
async def opened(
    wanted: ModelLike | None, clause: object, url: str | None
) -> AsyncIterator[Opened]:
    """The model of a query; closes a connection made for it.

    Precedence: `wanted`, the program's `from` clause, the model of the calling program. A Server
    without a name takes that of the clause. `url`: the server for names.
    """
    around = surroundings()
    chosen = _chosen(wanted, clause)
    if isinstance(chosen, Server) and chosen.url is None and url is None and around is not None:
        yield Opened(around.model, chosen.name or around.model_name)
    elif isinstance(chosen, Server):
        config = read_config()
        place = chosen.url or url or config.url
        key = chosen.key or read_address(place).key or config.api_key
        async with LmtpModel(place, key=key, on_notice=chosen.on_notice) as connected:
            yield Opened(connected, chosen.name)
    else:
        yield Opened(chosen)


def _chosen(wanted: ModelLike | None, clause: object) -> Model | Server:
    if wanted is None:
        return model_like(clause)
    chosen = model_like(wanted)
    if isinstance(chosen, Server) and chosen.name is None and clause is not None:
        said = model_like(clause)
        return replace(chosen, name=said.name) if isinstance(said, Server) else chosen
    return chosen


def model_like(value: object) -> Model | Server:
    """Convert a value to a model. Raises BadProgram."""
    if value is None:
        return Server()
    if isinstance(value, str):
        return Server(url=value) if "://" in value else Server(value)
    if isinstance(value, Server):
        return value
    asks = [getattr(value, name, None) for name in ("stream", "generate", "score")]
    if all(map(callable, asks)) and not isinstance(value, type):
        return value  # type: ignore[return-value]
    raise BadProgram(
        f"a model is its name, a URL, model(...) or an object that is one. Given: {value!r}"
    )
