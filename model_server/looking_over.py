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
from model_server.examination import examine
from model_server.hub import find_checkpoint
from model_server.loading import device_of, model_settings
from model_server.memory import require_weights_fit

_NICENESS = 10


def look_over(settings: CheckConfig) -> Path:
    """The model's folder, if nothing that can be known beforehand speaks against it.

    Raises ShardError with the reason.
    """
    # Others compute meanwhile, and somebody waits for them.
    os.nice(_NICENESS)
    torch.set_num_threads(1)
    serve = settings.serve
    device = device_of(serve.device, serve.world_size - 1)
    folder = find_checkpoint(serve.model_id, serve.revision)
    with _turn(settings.turn_file):
        examined = examine(model_settings(serve, folder, device), serve.world_size)
    require_weights_fit(
        device,
        examined.bytes_of_rank(serve.world_size),
        num_ranks=serve.world_size,
        memory_fraction=serve.cuda_memory_fraction,
        to_come=settings.memory_to_come,
    )
    if settings.folder_file is not None:
        settings.folder_file.write_text(str(folder))
    return folder


@contextlib.contextmanager
def _turn(path: Path | None) -> Iterator[None]:
    """Waits for other processes that name the same file. The lock goes with its process."""
    if path is None:
        yield
        return
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
