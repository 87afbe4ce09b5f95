"""Which names mean which models. It loads nothing and starts nothing.

`ListedModels`: those of the command line, and no others. `AnyModel`: every model below a folder,
and, unless that is switched off, every model of the hub. A name is taken as it is: what could lead
out of the folder, or is no name at all, is refused by a rule before any file is looked at.
"""

import asyncio
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from fleet.daemon_thread import aside
from fleet.errors import LoadFailed, NoModelNamed, NotNow, ShuttingDown, UnknownModel
from processes.hub import HubError, NotOnHub

# What clients send that know of one model only: TGI's and the hub's.
PLACEHOLDERS = frozenset({"", "tgi", "dummy"})
_CONFIG = "config.json"
_MAX_NAME_LEN = 512
_RULE = (
    "a name has at most 512 visible characters, and none of its parts between slashes is empty or "
    "begins with a dot or a dash"
)
_PART = re.compile(r"[^\x00-\x20\x7f/\\.-][^\x00-\x1f\x7f/\\]*")
# Models that are listed, of each of two levels below the root.
_MAX_LISTED = 1000
_MAX_REMEMBERED = 1000
_MAX_LOOKUPS = 4
# The hub itself is asked again and again for some minutes.
_PATIENCE_S = 60.0
_HUB_RETRY_AFTER_S = 30.0
_NEXT_SERVER_S = 1.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that may be loaded: its name as clients and answers have it, and where it is.

    `source` is a folder or a hub id, as `launcher serve` takes it.
    """

    name: str
    source: str


class Hub(Protocol):
    """Where models come from that are no local folders."""

    def has_here(self, name: str) -> bool:
        """Whether its cache has the model; needs no network."""

    def require(self, name: str) -> None:
        """Check that the model can be downloaded; takes seconds. Raises HubError."""


class Names(Protocol):
    """The models that may be asked for."""

    async def find(self, name: str) -> Model:
        """The model of this name. Raises UnknownModel or LoadFailed."""
        ...

    def default(self) -> Model | None:
        """What is meant when no name is given, if that does not depend on what is loaded."""
        ...

    def listed(self) -> list[str]:
        """Names that are known without being asked for. May look through folders."""
        ...

    def close(self) -> None:
        """Nothing is looked for any more; who waits for it is told so by ShuttingDown."""
        ...


class ListedModels:
    """The models of the command line; the first one is the default."""

    def __init__(self, ids: Sequence[str]) -> None:
        assert ids, "there is a model"
        self._models = [Model(each, _folder(each) or each) for each in ids]
        # A model's server answers to its folder too.
        by_folder = {each.source: each for each in self._models}
        self._by_name = by_folder | {each.name: each for each in self._models}

    async def find(self, name: str) -> Model:
        """The model of this name."""
        found = self._by_name.get(name)
        if found is None:
            raise UnknownModel(name, f"served are {', '.join(self.listed())}")
        return found

    def default(self) -> Model:
        """The first one."""
        return self._models[0]

    def listed(self) -> list[str]:
        """All of them."""
        return [each.name for each in self._models]

    def close(self) -> None:
        """It waits for nobody."""


class AnyModel:
    """Every model below `root`, by its path there; every model of `hub`, unless there is none.

    What the hub's cache has is found at once, whoever waits for the hub itself. What that does not
    have is remembered for `memory_s`, and asked for once at a time. Who asks waits for at most
    `patience_s`; what was found later is there for the next one.
    """

    def __init__(
        self,
        root: Path,
        hub: Hub | None,
        memory_s: float,
        clock: Callable[[], float],
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._root = root.resolve()
        self._hub = hub
        self._memory_s = memory_s
        self._clock = clock
        self._patience_s = patience_s
        self._refusals: dict[str, tuple[float, UnknownModel | NotNow]] = {}
        self._lookups: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(_MAX_LOOKUPS)
        self._is_closed = False

    def close(self) -> None:
        """Who waits for the hub is told at once that the server is shutting down."""
        self._is_closed = True
        for lookup in self._lookups.values():
            lookup.cancel()

    async def find(self, name: str) -> Model:
        """The folder of this name, or else the hub's model."""
        try:
            found = self._find_folder(name)
        except OSError as error:
            # Longer than a file's name may be, or closed to us.
            raise UnknownModel(name, f"{self._root}: {error.strerror}") from error
        if found is not None:
            return found
        if self._hub is None or name.startswith("/"):
            raise UnknownModel(name, f"{self._root} has no such folder")
        if os.path.isdir(name):  # which a server would take before the hub's
            raise UnknownModel(name, f"{Path(name).resolve()} is outside {self._root}")
        await self._ask_hub(name)
        return Model(name, name)

    def default(self) -> None:
        """There is none that could be meant whatever is loaded."""
        return None

    def listed(self) -> list[str]:
        """Folders with a model, one and two levels below the root."""
        found = []
        for pattern in (f"*/{_CONFIG}", f"*/*/{_CONFIG}"):
            for path in islice(self._root.glob(pattern), _MAX_LISTED):
                name = str(path.parent.relative_to(self._root))
                if _is_sound(name) and path.parent.resolve().is_relative_to(self._root):
                    found.append(name)
        return sorted(found)

    def _find_folder(self, name: str) -> Model | None:
        relative = self._relative(name)
        folder = self._root / relative
        if (folder / _CONFIG).is_file():
            resolved = folder.resolve()
            if not resolved.is_relative_to(self._root):
                raise UnknownModel(name, f"it leads out of {self._root}")
            return Model(relative, str(resolved))
        if folder.is_dir():
            raise UnknownModel(name, f"{folder} has no {_CONFIG}")
        return None

    def _relative(self, name: str) -> str:
        if name == str(self._root):
            raise UnknownModel(name, "it is the folder of the models, not one of them")
        relative = name.removeprefix(f"{self._root}/")
        if not _is_sound(relative):
            reason = f"outside {self._root} nothing is served" if name.startswith("/") else _RULE
            raise UnknownModel(name, reason)
        return relative

    async def _ask_hub(self, name: str) -> None:
        assert self._hub is not None
        if self._is_closed:
            raise _shutting_down()
        until_s, refusal = self._refusals.get(name, (0.0, None))
        if refusal is not None and self._clock() < until_s:
            raise refusal.with_traceback(None)
        lookup = self._lookups.get(name)
        if lookup is None:
            if self._hub.has_here(name):
                return
            lookup = self._lookups[name] = asyncio.create_task(self._look_up(name))
            lookup.add_done_callback(lambda task: self._looked_up(name, task))
        try:
            async with asyncio.timeout(self._patience_s):
                # One who leaves does not take the answer from the others.
                await asyncio.shield(lookup)
        except asyncio.CancelledError:
            if lookup.cancelled():  # by `close` alone
                raise _shutting_down() from None
            raise
        except TimeoutError:
            raise LoadFailed(
                f"the hub did not answer for {name!r} within {self._patience_s:g} s",
                self._memory_s,
            ) from None

    def _looked_up(self, name: str, task: asyncio.Task[None]) -> None:
        del self._lookups[name]
        if not task.cancelled():
            # Everybody may have left before; then it is remembered alone.
            task.exception()

    async def _look_up(self, name: str) -> None:
        assert self._hub is not None
        async with self._slots:
            try:
                await aside(partial(self._hub.require, name))
            except HubError as error:
                refusal = (
                    UnknownModel(name, str(error))
                    if isinstance(error, NotOnHub)
                    else LoadFailed(str(error), _HUB_RETRY_AFTER_S)
                )
                if len(self._refusals) >= _MAX_REMEMBERED:
                    self._refusals.clear()
                self._refusals[name] = (self._clock() + self._memory_s, refusal)
                raise refusal from error
        self._refusals.pop(name, None)


def no_model_named(names: Names) -> NoModelNamed:
    """Told to a request without a name, where none can be taken for it."""
    known = names.listed()[:5]
    told = f"; there are for example {', '.join(known)}" if known else ""
    return NoModelNamed(f"`model` is required: no model is loaded that could be meant{told}")


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the server is shutting down", _NEXT_SERVER_S)


def _is_sound(name: str) -> bool:
    parts = name.split("/")
    return len(name) <= _MAX_NAME_LEN and all(_PART.fullmatch(part) for part in parts)


def _folder(given: str) -> str | None:
    folder = os.path.expanduser(given)
    return str(Path(folder).resolve()) if os.path.isdir(folder) else None
