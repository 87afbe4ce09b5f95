"""From a tokenizer's name to a local folder: as given, or fetched from the hub."""

import os
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from router.request.errors import StartupFailed

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template*",
    "added_tokens.json",
)


def find_tokenizer(name: str, revision: str | None) -> Path:
    """The folder of `name`, a local folder or a hub id. Raises StartupFailed with the reason.

    Token and cache are those of huggingface_hub (HF_TOKEN, HF_HOME, HF_HUB_CACHE).
    """
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder.resolve()
    if folder.is_absolute() or name.startswith((".", "~")):
        raise StartupFailed(f"the tokenizer's folder {name!r} does not exist")
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(_FILES)))
    except HFValidationError as error:
        raise StartupFailed(
            f"the tokenizer {name!r} is neither an existing folder nor a hub id "
            "(NAME or OWNER/NAME)"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError, GatedRepoError) as error:
        where = f" at revision {revision!r}" if revision else ""
        raise StartupFailed(
            f"the hub does not give {name!r}{where}: {_first_line(error)} (for a private or gated "
            "model set HF_TOKEN)"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        raise StartupFailed(
            f"the tokenizer {name!r} is no local folder and could not be fetched from the hub: "
            f"{_first_line(error)}"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
