"""The models that a request may name: the served one, by an alias too, and its LoRA adapters.

An adapter is a model of its own to clients: its name stands in `model`, and in TGI's `adapter_id`.
"""

from dataclasses import dataclass
from typing import Any

from router.engine.adapters import Adapter, Adapters
from router.http.errors import HttpError, model_not_found
from router.http.server_info import ServerInfo
from router.request.errors import wrong

_NONE_LOADED = "must be absent: no adapter is loaded"
# What clients send that know of one model only: TGI's and the hub's.
PLACEHOLDERS = ("", "tgi", "dummy")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a request names. `name` is that of its answer; `adapter_id` None: the model alone."""

    name: str
    adapter_id: int | None = None


class ServedModels:
    """Reads names. What adapters there are changes; who has read one keeps what it stood for."""

    def __init__(self, info: ServerInfo, adapters: Adapters) -> None:
        self._info = info
        self._adapters = adapters

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those that may be named now."""
        return tuple(self._adapters.listed.values())

    @property
    def max_loras(self) -> int:
        """How many there may be."""
        return self._adapters.max_loras

    def find(self, asked: str | None) -> ServedModel:
        """What `model` names. Raises HttpError (404) for the name of another model."""
        if asked is None or asked in PLACEHOLDERS:
            return ServedModel(self._info.model_id)
        if self._is_model(asked):
            return ServedModel(asked)
        adapter = self._adapters.listed.get(asked)
        if adapter is None:
            raise self._not_found(asked)
        return ServedModel(asked, adapter.adapter_id)

    def adapter_id(self, name: str | None) -> int | None:
        """What TGI's `adapter_id` names; None: the model alone. Raises InvalidRequest."""
        if name is None:
            return None
        adapter = self._adapters.listed.get(name)
        if adapter is None:
            known = ", ".join(f"`{each}`" for each in self._adapters.listed)
            rule = f"must be one of the loaded adapters, {known}" if known else _NONE_LOADED
            raise wrong("adapter_id", rule, name)
        return adapter.adapter_id

    def cards(self) -> list[dict[str, Any]]:
        """All, as /v1/models has them: each once."""
        return [
            self._card(self._info.model_id),
            *(self._adapter_card(adapter) for adapter in self.adapters),
        ]

    def card(self, name: str) -> dict[str, Any]:
        """One of them. Raises HttpError (404)."""
        if self._is_model(name):
            return self._card(self._info.model_id)
        adapter = self._adapters.listed.get(name)
        if adapter is None:
            raise self._not_found(name)
        return self._adapter_card(adapter)

    def _card(self, name: str) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._info.created_s,
            "owned_by": self._info.model_id,
            "max_model_len": self._info.limits.max_total_len,
            "sees": self._info.sees,
        }

    def _adapter_card(self, adapter: Adapter) -> dict[str, Any]:
        return {**self._card(adapter.name), "parent": self._info.model_id}

    def _is_model(self, name: str) -> bool:
        return name == self._info.model_id or name in self._info.aliases

    def _not_found(self, name: str) -> HttpError:
        return model_not_found(name, (self._info.model_id, *self._adapters.listed))
