"""The LoRA adapters of a server: which there are, by which names, and who is computed with them.

    load -> listed -> hidden -> freed
               |         ^
               +---------+  unloaded by its name, while requests are computed with it

A name is listed once all shards hold its adapter, until it is unloaded; what was accepted until
then ends with it, and then the shards free it. Each load has a number of its own, which is never
used again: a name that is loaded anew finds nothing in the prefix cache of the one before it.

Shards that begin anew hold no adapter: all are loaded again before the first step (`restore`). One
that is refused then stays listed, so that its requests fail by name, and is tried at the next time.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from types import MappingProxyType

from processes.model_folders import HubError, find_folder
from router.request.errors import (
    AdapterLost,
    AdapterRefused,
    NoAdapter,
    ShardFailed,
    StartupFailed,
    quoted,
)
from router.shards.shards import Shards

_logger = logging.getLogger(__name__)

# Of a folder in PEFT's format.
CONFIG_NAME = "adapter_config.json"
_PATTERNS = (CONFIG_NAME, "adapter_model.safetensors")
# The names of running adapters stand between commas in a label.
_NAME = re.compile(r"[^\x00-\x20,\x7f]{1,200}")


@dataclass(frozen=True, slots=True)
class Adapter:
    """A load of a LoRA adapter. `path` is its folder, `rank` the largest of its matrices.

    `digest` is of its files: where it is the same, the adapter is.
    """

    adapter_id: int
    name: str
    path: str
    rank: int
    digest: str


@dataclass(slots=True)
class _Held:
    """An adapter that the shards hold, or are to hold again.

    `users`: requests that shards may compute with it, and groups of them. `refusal`: why shards
    that began anew did not take it.
    """

    adapter: Adapter
    users: set[object] = field(default_factory=set)
    refusal: str | None = None


class Adapters:
    """Owner of the list. `max_loras` is the shards'; `taken_names` are those of the model."""

    def __init__(
        self, shards: Shards, max_loras: int = 0, taken_names: Collection[str] = ()
    ) -> None:
        self.max_loras = max_loras
        self._shards = shards
        self._taken_names = frozenset(taken_names)
        self._num_loads = 0
        self._held: dict[int, _Held] = {}
        # Replaced as a whole, since bodies are checked in a thread of their own.
        self._listed: Mapping[str, Adapter] = MappingProxyType({})
        self._loading: set[str] = set()
        # Numbers that shards may hold and nobody needs.
        self._to_free: set[int] = set()
        self._freeing: set[asyncio.Task[None]] = set()
        self._is_void = False

    @property
    def listed(self) -> Mapping[str, Adapter]:
        """Those that requests may name, in the order of their loads."""
        return self._listed

    def name_of(self, adapter_id: int) -> str:
        """The name under which it was loaded."""
        return self._held[adapter_id].adapter.name

    def digest_of(self, adapter_id: int | None) -> str | None:
        """That of its files; None: the model alone, or it is gone."""
        held = None if adapter_id is None else self._held.get(adapter_id)
        return None if held is None else held.adapter.digest

    # The operator

    async def begin(self, folders: Mapping[str, str]) -> None:
        """Loads the adapters of a start, by their names. Raises StartupFailed, ShardFailed."""
        if self.max_loras:
            # A router before this one may have left some.
            await self._shards.unload_adapter(None)
        for name, path in folders.items():
            try:
                await self.load(name, path)
            except AdapterRefused as error:
                raise StartupFailed(f"--lora-adapters {name}={path}: {error}") from error

    async def load(self, name: str, path: str) -> Adapter:
        """Has the shards hold the adapter of a folder, and lists it.

        Raises AdapterRefused, and ShardFailed when they do not answer.
        """
        if not _NAME.fullmatch(name):
            rule = "must have 1 to 200 characters, without white space and commas"
            raise AdapterRefused(f"`lora_name` {rule}. Given: {quoted(name)}", "lora_name")
        if name in self._taken_names:
            raise AdapterRefused(f"{name!r} is a name of the model itself", "lora_name")
        if name in self._listed or name in self._loading:
            raise AdapterRefused(f"the lora adapter {name!r} has already been loaded", "lora_name")
        self._num_loads += 1
        adapter_id = self._num_loads
        self._loading.add(name)
        try:
            digest = await asyncio.to_thread(_digest_of, Path(path))
            loaded = await self._shards.load_adapter(adapter_id, path)
        except (AdapterRefused, ShardFailed):
            # Some ranks may hold it.
            self._to_free.add(adapter_id)
            await self._free_all()
            raise
        finally:
            self._loading.discard(name)
        adapter = Adapter(adapter_id, name, path, loaded.rank, digest)
        self._held[adapter_id] = _Held(adapter)
        self._listed = MappingProxyType({**self._listed, name: adapter})
        _logger.info(
            "LoRA adapter %s: rank %d, %.1f MB, from %s",
            name,
            loaded.rank,
            loaded.num_bytes / 1e6,
            path,
        )
        return adapter

    async def unload(self, name: str) -> None:
        """Hides the name at once; the shards free the adapter when no request needs it any more.

        Raises NoAdapter.
        """
        adapter = self._listed.get(name)
        if adapter is None:
            raise NoAdapter(f"the lora adapter {name!r} cannot be found", "lora_name")
        kept = {each: other for each, other in self._listed.items() if each != name}
        self._listed = MappingProxyType(kept)
        _logger.info("LoRA adapter %s: unloaded", name)
        if self._has_let_go(adapter.adapter_id):
            # So that another one has room at once.
            await self._free_all()

    # Requests

    def check(self, adapter_id: int | None) -> None:
        """Raises NoAdapter and AdapterLost for a request that cannot be computed with it now."""
        if adapter_id is None:
            return
        held = self._held.get(adapter_id)
        if held is None:
            raise NoAdapter("the request's LoRA adapter was unloaded before it began", "model")
        if held.refusal is not None:
            raise _lost(held.adapter, held.refusal)

    def hold(self, adapter_id: int | None, user: object) -> None:
        """`user` needs it from now on; it has been checked."""
        if adapter_id is not None:
            self._held[adapter_id].users.add(user)

    def release(self, adapter_id: int | None, user: object) -> None:
        """No shard computes anything of `user` any more."""
        if adapter_id is None:
            return
        self._held[adapter_id].users.discard(user)
        if self._has_let_go(adapter_id):
            self._free_soon(adapter_id)

    # Shards that began anew

    async def restore(self, *, have_forgotten: bool) -> Mapping[int, AdapterLost]:
        """Loads all again where shards have forgotten them; those that are refused, and why.

        Raises ShardFailed; then it is to be called again.
        """
        self._is_void = self._is_void or have_forgotten
        if not self._is_void:
            await self._free_all()
            return {}
        if self.max_loras:
            # A rank that was not started anew has them still.
            await self._shards.unload_adapter(None)
            self._to_free.clear()
        lost: dict[int, AdapterLost] = {}
        for adapter_id, held in tuple(self._held.items()):
            adapter = held.adapter
            try:
                await self._shards.load_adapter(adapter_id, adapter.path)
            except AdapterRefused as error:
                # The reason goes to clients, which know an adapter by its name alone.
                held.refusal = str(error).replace(adapter.path, adapter.name)
                lost[adapter_id] = _lost(adapter, held.refusal)
                _logger.error("%s", lost[adapter_id])
            else:
                held.refusal = None
            if adapter_id not in self._held:
                # Its last user has left meanwhile.
                self._free_soon(adapter_id)
        self._is_void = False
        return lost

    def _has_let_go(self, adapter_id: int) -> bool:
        """Whether it is neither listed nor used, and so to be freed."""
        held = self._held[adapter_id]
        if held.users or self._listed.get(held.adapter.name) is held.adapter:
            return False
        del self._held[adapter_id]
        self._to_free.add(adapter_id)
        return True

    def _free_soon(self, adapter_id: int) -> None:
        self._to_free.add(adapter_id)
        task = asyncio.create_task(self._free_all())
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def _free_all(self) -> None:
        """What shards that do not answer keep is freed once they do."""
        for adapter_id in tuple(self._to_free):
            try:
                await self._shards.unload_adapter(adapter_id)
            except ShardFailed as error:
                _logger.warning("an adapter is not freed yet: %s", error)
                return
            self._to_free.discard(adapter_id)


def _digest_of(folder: Path) -> str:
    digest = sha256()
    for file in sorted(path for name in _PATTERNS for path in folder.glob(name)):
        with file.open("rb") as opened:
            digest.update(file_digest(opened, "sha256").digest())
    return digest.hexdigest()[:16]


def find_adapter(name: str) -> Path:
    """The folder of an adapter, here or of the hub. Raises StartupFailed."""
    try:
        folder = find_folder(name, None, _PATTERNS, noun="adapter")
    except HubError as error:
        raise StartupFailed(str(error)) from error
    if not (folder / CONFIG_NAME).is_file():
        raise StartupFailed(f"the adapter's folder {str(folder)!r} has no {CONFIG_NAME}")
    return folder


def _lost(adapter: Adapter, reason: str) -> AdapterLost:
    return AdapterLost(
        f"the shards began anew and do not take the LoRA adapter {adapter.name!r}: {reason}"
    )
