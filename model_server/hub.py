"""From a model's name to a local folder: as given, or fetched from the hub.

Weights are taken as safetensors only, unless pickled ones are asked for: unpickling runs code.
"""

import os
from pathlib import Path

from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from model_server.errors import ModelRefused
from model_server.fetching import fetch

_SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.txt", "*.py")


def find_checkpoint(model_id: str, revision: str | None, *, allow_pickle: bool = False) -> Path:
    """The folder of `model_id`, which is a local folder or a hub id; downloads what is missing.

    Token and cache are those of huggingface_hub (HF_TOKEN, HF_HOME, HF_HUB_CACHE), which shows
    its own progress bars. Raises ModelRefused with the reason and what to do.
    """
    folder = Path(os.path.expanduser(model_id))
    if os.path.isdir(folder):
        return folder.resolve()
    if folder.is_absolute() or model_id.startswith((".", "~")):
        raise ModelRefused(f"model folder {model_id!r} does not exist")
    try:
        path = fetch(model_id, revision, (*_SMALL_FILES, "*.safetensors"))
        if not any(path.glob("*.safetensors")):
            if not allow_pickle:
                raise ModelRefused(
                    f"{model_id!r} offers no .safetensors weights; pickled ones run code when "
                    "they are loaded: pass --allow-pickle to download-weights if you trust them"
                )
            path = fetch(model_id, revision, (*_SMALL_FILES, "*.bin"))
    except HFValidationError as error:
        raise ModelRefused(
            f"{model_id!r} is neither an existing folder nor a hub id (NAME or OWNER/NAME)"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError) as error:
        where = f" at revision {revision!r}" if revision else ""
        raise ModelRefused(
            f"the hub does not give {model_id!r}{where}: {_first_line(error)} "
            "(for a private or gated model set HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise ModelRefused(
            f"{model_id!r} is no local folder and could not be fetched from the hub: "
            f"{_first_line(error)}"
        ) from error
    return path


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
