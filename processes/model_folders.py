"""Models and tokenizers by name: a local folder, or else the hub's."""

import os
from collections.abc import Sequence
from pathlib import Path

# Without one of them a checkpoint has no processor of images.
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")


class HubError(Exception):
    """A name leads to no folder; the message is the reason."""


class NotOnHub(HubError):
    """The hub has no such model, or not for us."""


class DownloadStalled(HubError):
    """Nothing came from the hub for too long; a thread still waits for it."""


def find_folder(
    name: str, revision: str | None, patterns: Sequence[str], *, noun: str = "model"
) -> Path:
    """The local folder `name`, or a snapshot of the hub's model with the files of `patterns`.

    Downloads what the cache lacks. `noun` is what error texts call it. Raises HubError.
    """
    folder = local_folder(name, noun)
    if folder is not None:
        return folder
    # It takes as long to import as all else of the launcher, and most folders are local.
    from processes.hub import fetched  # noqa: PLC0415

    return fetched(name, revision, patterns, noun)


def local_folder(name: str, noun: str = "model") -> Path | None:
    """The folder of that name on this machine; None: it can only be the hub's.

    Raises NotOnHub for what is neither a folder nor a name on the hub.
    """
    folder = Path(os.path.expanduser(name))
    if os.path.isdir(folder):
        return folder.resolve()
    if folder.is_file():
        inside = f"; its folder is {folder.parent}" if folder.suffix == ".safetensors" else ""
        raise NotOnHub(
            f"{name!r} is a file: a {noun} is a folder{', a .gguf file' * (noun == 'model')} or a "
            f"hub id{inside}"
        )
    if folder.is_absolute() or name.startswith((".", "~")):
        kind = "file" if folder.suffix == ".gguf" else "folder"
        raise NotOnHub(f"the {noun}'s {kind} {name!r} does not exist")
    return None


def has_processor(folder: Path) -> bool:
    """Whether it is of a checkpoint that may see images."""
    return any((folder / name).is_file() for name in PROCESSOR_FILES)


def name_for_clients(model_id: str, others: Sequence[str] = ()) -> str:
    """What clients call a model: a hub id as it is, of a path here the last part.

    It has more parts of the path where one of the `others`, ids as well, would end alike.
    """
    path = _path_here(model_id)
    if path is None:
        return model_id
    rivals = {f"/{(_path_here(each) or each).lstrip('/')}" for each in others} - {path}
    parts = path.lstrip("/").split("/")
    names = ["/".join(parts[index:]) for index in reversed(range(len(parts)))]
    return next(each for each in names if not any(rival.endswith(f"/{each}") for rival in rivals))


def _path_here(model_id: str) -> str | None:
    path = os.path.expanduser(model_id)
    return os.path.abspath(path) if os.path.isabs(path) or os.path.exists(path) else None
