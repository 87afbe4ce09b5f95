"""The first thing that a shard does: checks of all that is known without weights and other ranks.

    --device -> a device of this machine
    MODEL_ID -> a folder, its files, a class, how it is computed    (checkpoint_check)
    lengths  -> within the model's context

It takes a few seconds, where weights may take minutes.
"""

from pathlib import Path

import torch

from model_server.config import ServeConfig, num_gpus
from model_server.errors import ConfigRefused
from model_server.model.checkpoint import find_checkpoint
from model_server.model.checkpoint_check import (
    CheckedCheckpoint,
    ModelSettings,
    check_checkpoint,
)

_DRIVER = Path("/proc/driver/nvidia/version")


def preflight(settings: ServeConfig) -> tuple[ModelSettings, CheckedCheckpoint]:
    """Check all that can be checked before weights are read, and without other ranks.

    Raises ConfigRefused and whatever `check_checkpoint` raises.
    """
    local_rank = settings.rank if settings.local_rank is None else settings.local_rank
    device = device_of(settings.device, local_rank, num_gpus())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    of_model = ModelSettings(
        folder=find_checkpoint(settings.model_id, settings.revision),
        dtype=settings.dtype,
        device=device,
        trust_remote_code=settings.trust_remote_code,
        attention=settings.attention,
        quantize=settings.quantize,
    )
    checked = check_checkpoint(of_model, settings.world_size)
    max_len = checked.facts.max_position_embeddings
    if max_len is not None:
        _require_lengths(settings, max_len)
    return of_model, checked


def _require_lengths(settings: ServeConfig, max_len: int) -> None:
    """Raises ConfigRefused for requests that are longer than the model's context."""
    for flag, asked_len, most in (
        ("--max-total-tokens", settings.max_total_tokens, max_len),
        # An answer has a token at least.
        ("--max-input-tokens", settings.max_input_tokens, max_len - 1),
    ):
        if asked_len is not None and asked_len > most:
            raise ConfigRefused(
                f"{flag} {asked_len}: must be at most {most}, for the model's longest context is"
                f" {max_len}"
            )


def device_of(name: str, local_rank: int, num_gpus: int) -> torch.device:
    """The device of a rank, by --device: the GPU of its number on this machine.

    num_gpus: that the machine has. Where it has some and torch finds none, nothing is computed on
    the CPU unless that was asked for. Raises ConfigRefused.
    """
    if name == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if name == "auto" and num_gpus == 0:
            return torch.device("cpu")
        raise ConfigRefused(
            f"--device {name}: torch {torch.__version__} (CUDA {torch.version.cuda}) finds no CUDA"
            f" device, and the machine has {num_gpus} (driver: {driver_version()}); install torch"
            " for CUDA and a driver that it knows, or serve with --device cpu"
        )
    if local_rank >= torch.cuda.device_count():
        raise ConfigRefused(
            f"LOCAL_RANK {local_rank} has no GPU: torch finds {torch.cuda.device_count()} on this"
            f" machine, which has {num_gpus}"
        )
    return torch.device("cuda", local_rank)


def driver_version() -> str:
    """NVIDIA's driver, or that there is none."""
    try:
        words = _DRIVER.read_text().split()
    except OSError:
        return "none"
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")


def bytes_of_rank(settings: ServeConfig, checked: CheckedCheckpoint) -> int | None:
    """Of one rank's weights; None where they are quantized, since that is unknown."""
    is_known = checked.weights_bytes is not None and settings.quantize is None
    return checked.bytes_of_rank if is_known else None
