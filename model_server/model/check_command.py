"""`check`: a model that is looked over and not loaded, beside others that go on computing.

    fetched if need be -> its turn -> files, class, self-test -> memory

Fetching waits for nobody: it takes a network, and the rest a core.
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
from model_server.model.checkpoint_check import examine
from model_server.model.loading import device_of, model_settings

_NICENESS = 10


def look_over(settings: CheckConfig) -> Path:
    """The model's folder, if nothing that can be known beforehand speaks against it.

    Raises ShardError with the reason.
    """
    # Others compute meanwhile, and somebody waits for them.
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    device = device_of(settings.device, settings.world_size - 1)
    folder = find_checkpoint(settings.model_id, settings.revision)
    with _turn(settings.turn_file):
        examined = examine(model_settings(settings, folder, device), settings.world_size)
    _require_room(settings, device, examined.bytes_of_rank(settings.world_size))
    if settings.folder_file is not None:
        settings.folder_file.write_text(str(folder))
    return folder


def _require_room(settings: CheckConfig, device: torch.device, rank_bytes: int) -> None:
    """Raises OutOfMemory; what the host must have is told alone where a file is named for it."""
    needed = weights_of_all(device, rank_bytes, settings.world_size)
    is_on_host = device.type != "cuda"
    if not is_on_host:
        # What others hold of it they may give back.
        require_share(device, needed, settings.cuda_memory_fraction)
    elif settings.needs_file is None:
        require_weights_fit(device, needed, available_bytes(device))
    if settings.needs_file is not None:
        settings.needs_file.write_text(str(needed if is_on_host else 0))


@contextlib.contextmanager
def _turn(path: Path | None) -> Iterator[None]:
    """Waits for other processes that name the same file. The lock goes with its process."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
