"""Does the hub, or its cache here, have a model? Asked before a server is started for it.

Token, cache and whether to be offline are those of huggingface_hub (HF_TOKEN, HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE).
"""

import json
import re
from pathlib import Path
from typing import Protocol

from huggingface_hub import hf_hub_download, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_OFFLINE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from fleet.errors import LoadFailed, UnknownModel

# What the hub allows: [OWNER/]NAME.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_RETRY_AFTER_S = 30.0
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"


class Hub(Protocol):
    """Where models come from that are no local folders."""

    def has_here(self, name: str) -> bool:
        """Whether its cache knows the model: nobody else is asked."""

    def require(self, name: str) -> None:
        """Raises UnknownModel or LoadFailed when `name` cannot be had. May take seconds."""


class HuggingFaceHub:
    """The hub of huggingface_hub."""

    def has_here(self, name: str) -> bool:
        """Whether the cache has the model's config."""
        return _is_id(name) and _cached(name, _CONFIG) is not None

    def require(self, name: str) -> None:
        """Raises UnknownModel when the hub has no such model for us, LoadFailed when it is not
        reached."""
        if not _is_id(name):
            raise UnknownModel(name, "a model of the hub is NAME or OWNER/NAME")
        try:
            hf_hub_download(name, _CONFIG)
        except HFValidationError as error:
            raise UnknownModel(name, "a model of the hub is NAME or OWNER/NAME") from error
        except GatedRepoError as error:
            raise UnknownModel(name, "the hub gives it to some alone (set HF_TOKEN)") from error
        except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
            if HF_HUB_OFFLINE:
                reason = "it is not in the hub's cache, and this server is offline"
                raise UnknownModel(name, reason) from error
            raise LoadFailed(
                f"the model {name!r} is not in the hub's cache, and the hub was not reached",
                _RETRY_AFTER_S,
            ) from error
        except RepositoryNotFoundError as error:
            raise UnknownModel(name, "the hub has no such model, or not for us") from error
        except EntryNotFoundError as error:
            raise UnknownModel(name, f"on the hub it has no {_CONFIG}") from error
        except (HfHubHTTPError, OSError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise LoadFailed(
                f"the hub was asked for {name!r} and failed: {reason}", _RETRY_AFTER_S
            ) from error


def is_cached(name: str) -> bool:
    """Whether the cache has a model's weights and config: nothing large has to be fetched."""
    if not _is_id(name) or _cached(name, _CONFIG) is None:
        return False
    if _cached(name, _WEIGHTS) is not None:
        return True
    index = _cached(name, f"{_WEIGHTS}.index.json")
    if index is None:
        return False
    try:
        parts = set(json.loads(Path(index).read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(parts) and all(_cached(name, str(part)) is not None for part in parts)


def _is_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and "--" not in name


def _cached(name: str, file: str) -> str | None:
    found = try_to_load_from_cache(name, file)
    return found if isinstance(found, str) else None
