"""The sampling parameters that a checkpoint's makers recommend, in its generation_config.json."""

from collections.abc import Mapping
from pathlib import Path

from model_server.errors import CheckpointBroken
from processes.json_file import read_object
from processes.rules import sampling_defaults
from processes.settings import BadConfig


def read_sampling_defaults(folder: Path) -> Mapping[str, float]:
    """The parameters that the file names; those that are null count as absent.

    Raises CheckpointBroken for values that no request could have.
    """
    path = folder / "generation_config.json"
    try:
        config = read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointBroken(str(error)) from error
    try:
        return sampling_defaults(config)
    except BadConfig as error:
        raise CheckpointBroken(f"{path}: {error}") from None
