"""The models that requests may name: those of the command line, or any of a folder and the hub.

A name that could lead out of the folder, or breaks the rule for names, is refused before any file
is read.
"""

import asyncio
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

from fleet.errors import LoadFailed, UnknownModel
from processes.hub import run_in_daemon_thread
from processes.model_folders import HubError, NotOnHub, name_for_clients

# Names that TGI's and the hub's clients send for the only model of a server.
PLACEHOLDERS = frozenset({"", "tgi", "dummy"})
_CONFIG = "config.json"
_MAX_NAME_LEN = 512
_RULE = (
    "a name has at most 512 visible characters, and none of its parts between slashes is empty or "
    "begins with a dot or a dash"
)
_OUTSIDE = "outside of the folder of the models nothing is served"
_PART = re.compile(r"[^\x00-\x20\x7f/\\.-][^\x00-\x1f\x7f/\\]*")
# On each of two levels below the root.
_MAX_LISTED = 1000
_MAX_LOOKUPS = 4
# The hub's own client retries for some minutes.
_HUB_TIMEOUT_S = 60.0
_HUB_RETRY_AFTER_S = 30.0


@dataclass(frozen=True, slots=True)
class Model:
    """A model that may be loaded. `source` is a folder or a hub id, as of `launcher serve`."""

    name: str
    source: str


class Hub(Protocol):
    """The source of models that are not local folders."""

    def has_here(self, name: str) -> bool:
        """Whether its cache has the model; needs no network."""

    def require(self, name: str) -> None:
        """Check that the model can be downloaded; takes seconds. Raises HubError."""


class ListedModels:
    """The models of the command line; the first one is the default.

    Folders are listed by name, and found by their path as well.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        assert ids, "there is a model"
        self._models = [Model(name_for_clients(each, ids), _folder(each) or each) for each in ids]
        # A model's server answers to its folder too.
        by_folder = {each.source: each for each in self._models}
        self._by_name = by_folder | {each.name: each for each in self._models}

    async def find(self, name: str) -> Model:
        found = self._by_name.get(name)
        if found is None:
            raise UnknownModel(name, f"served are {', '.join(self.listed())}")
        return found

    def default(self) -> Model:
        """The first one."""
        return self._models[0]

    def listed(self) -> list[str]:
        return [each.name for each in self._models]


class AnyModel:
    """Every model below `root`, by its path there, and every model of `hub` if there is one.

    What the hub's cache has is found without waiting for the hub, for which a request waits for at
    most `hub_timeout_s`.
    """

    def __init__(self, root: Path, hub: Hub | None, hub_timeout_s: float = _HUB_TIMEOUT_S) -> None:
        self._root = root.resolve()
        self._hub = hub
        self._hub_timeout_s = hub_timeout_s
        self._lookups = asyncio.Semaphore(_MAX_LOOKUPS)

    async def find(self, name: str) -> Model:
        """The folder of this name, or else the hub's model of this name."""
        try:
            found = self._find_folder(name)
        except OSError as error:
            # The name is longer than file names may be, or the folder is not readable.
            raise UnknownModel(name, str(error.strerror)) from error
        if found is not None:
            return found
        if self._hub is None or name.startswith("/"):
            raise UnknownModel(name, "there is no such folder of a model")
        if os.path.isdir(name):  # a server would prefer it to the hub's model
            raise UnknownModel(name, "that folder is outside of the one of the models")
        if not self._hub.has_here(name):
            await self._ask(self._hub, name)
        return Model(name, name)

    def default(self) -> None:
        """None: it depends on what is loaded."""
        return None

    def listed(self) -> list[str]:
        """Folders with a model, one and two levels below the root."""
        found = []
        for pattern in (f"*/{_CONFIG}", f"*/*/{_CONFIG}"):
            for path in islice(self._root.glob(pattern), _MAX_LISTED):
                name = str(path.parent.relative_to(self._root))
                if _is_valid(name) and path.parent.resolve().is_relative_to(self._root):
                    found.append(name)
        return sorted(found)

    def _find_folder(self, name: str) -> Model | None:
        relative = self._relative(name)
        folder = self._root / relative
        if (folder / _CONFIG).is_file():
            resolved = folder.resolve()
            if not resolved.is_relative_to(self._root):
                raise UnknownModel(name, "it leads out of the folder of the models")
            return Model(relative, str(resolved))
        if folder.is_dir():
            raise UnknownModel(name, f"it has no {_CONFIG}")
        return None

    def _relative(self, name: str) -> str:
        if name == str(self._root):
            raise UnknownModel(name, "it is the folder of the models, not one of them")
        relative = name.removeprefix(f"{self._root}/")
        if not _is_valid(relative):
            reason = _OUTSIDE if name.startswith("/") else _RULE
            raise UnknownModel(name, reason)
        return relative

    async def _ask(self, hub: Hub, name: str) -> None:
        """Check that the hub has the model. Raises UnknownModel and LoadFailed."""
        lookup = partial(hub.require, name)
        try:
            async with asyncio.timeout(self._hub_timeout_s), self._lookups:
                await asyncio.wrap_future(run_in_daemon_thread(lookup))
        except NotOnHub as error:
            raise UnknownModel(name, str(error)) from error
        except HubError as error:
            raise LoadFailed(str(error), _HUB_RETRY_AFTER_S) from error
        except TimeoutError:
            message = f"the hub did not answer for {name!r} within {self._hub_timeout_s:g} s"
            raise LoadFailed(message, _HUB_RETRY_AFTER_S) from None


# The models that requests may name.
ModelNames = ListedModels | AnyModel


def _is_valid(name: str) -> bool:
    parts = name.split("/")
    return len(name) <= _MAX_NAME_LEN and all(_PART.fullmatch(part) for part in parts)


def _folder(source: str) -> str | None:
    folder = os.path.expanduser(source)
    return str(Path(folder).resolve()) if os.path.isdir(folder) else None
