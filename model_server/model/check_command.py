"""The command `check`: checks a model without loading it, while others go on computing.

    download if needed -> lock -> files, class, self-test -> memory

Downloads take no lock: they need the network, the rest needs a core.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import torch

from model_server.config import CheckConfig
from model_server.engine.memory import (
    available_bytes,
    require_share,
    require_weights_fit,
    weights_of_all,
)
from model_server.model.checkpoint import find_checkpoint
from model_server.model.checkpoint_check import check_checkpoint
from model_server.model.loading import device_of, model_settings

_NICENESS = 10


def check_model(settings: CheckConfig) -> Path:
    """The model's folder, after every check that needs no weights.

    Raises ShardError with the reason.
    """
    # Other processes serve requests meanwhile.
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    device = device_of(settings.device, settings.world_size - 1)
    folder = find_checkpoint(settings.model_id, settings.revision)
    with _lock(settings.turn_file):
        checked = check_checkpoint(model_settings(settings, folder, device), settings.world_size)
    _require_room(settings, device, checked.bytes_of_rank(settings.world_size))
    if settings.folder_file is not None:
        settings.folder_file.write_text(str(folder))
    return folder


def _require_room(settings: CheckConfig, device: torch.device, rank_bytes: int) -> None:
    """Raises OutOfMemory. A file named for the host's bytes gets them, and they are not checked."""
    needed = weights_of_all(device, rank_bytes, settings.world_size)
    is_on_host = device.type != "cuda"
    if not is_on_host:
        # What other processes hold of it they may free.
        require_share(device, needed, settings.cuda_memory_fraction)
    elif settings.needs_file is None:
        require_weights_fit(device, needed, available_bytes(device))
    if settings.needs_file is not None:
        settings.needs_file.write_text(str(needed if is_on_host else 0))


@contextlib.contextmanager
def _lock(path: Path | None) -> Iterator[None]:
    """Holds the lock on a file; a process that ends releases its lock."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
