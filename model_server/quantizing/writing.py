"""A checkpoint in 4 bits, in the format `gptq`, written beside the one that it is made of.

name.weight -> name.qweight, name.qzeros, name.scales, name.g_idx
               see checkpoint/int4_checkpoint.py
all other tensors, tokenizer, chat templates and licences as they are
config.json   as it is, and quantization_config
"""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model_server.checkpoint.checkpoint import CONFIG_NAME, INDEX_NAME, SMALL_FILES
from model_server.errors import ConfigRefused
from model_server.executor.int4 import Int4Weight, packed

_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path`, which becomes it at the end; if anything fails, nothing stays.

    Raises ConfigRefused where there is something already, or none can be made.
    """
    if path.exists() or path.is_symlink():
        raise ConfigRefused(f"OUT {str(path)!r}: exists already; name a folder that does not")
    folder = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigRefused(f"OUT {str(path)!r}: no folder can be made there: {error}") from error
    try:
        yield folder
        folder.rename(path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def tensors_of(layer: str, weight: Int4Weight) -> dict[str, Tensor]:
    """What a file has for a linear layer's weight."""
    groups = torch.arange(weight.num_inputs, dtype=torch.int32) // weight.group_len
    return {
        f"{layer}.qweight": weight.packed.T.contiguous(),
        # The format's zero points are stored less one.
        f"{layer}.qzeros": packed(weight.zeros.T - 1),
        f"{layer}.scales": weight.scales.T.contiguous(),
        f"{layer}.g_idx": groups,
    }


class WeightsWriter:
    """Writes a file of weights after the other, and their index at the end."""

    def __init__(self, folder: Path, num_files: int) -> None:
        self._folder = folder
        self._num_files = num_files
        self._weight_map: dict[str, str] = {}
        self._num_written = 0

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """The next file, of tensors in memory or mapped."""
        self._num_written += 1
        path = self._folder / f"model-{self._num_written:05}-of-{self._num_files:05}.safetensors"
        path.touch()
        # That library's files are for their owner alone, whatever the operator's mask says.
        mode = path.stat().st_mode
        save_file(dict(tensors), path, {"format": "pt"})
        path.chmod(mode)
        self._weight_map |= dict.fromkeys(tensors, path.name)

    def finish(self) -> None:
        """Once all are written."""
        content = {"metadata": {}, "weight_map": self._weight_map}
        (self._folder / INDEX_NAME).write_text(json.dumps(content, indent=2))


def copy_files(source: Path, target: Path) -> None:
    """What a checkpoint has beside weights and config."""
    for pattern in (*SMALL_FILES, *_LICENCES):
        for path in source.glob(pattern):
            if path.name not in (CONFIG_NAME, INDEX_NAME) and path.is_file():
                shutil.copyfile(path, target / path.name)


def write_config(folder: Path, original: Mapping[str, Any], group_len: int) -> None:
    settings = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": group_len,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
    }
    content = {**original, "quantization_config": settings}
    (folder / CONFIG_NAME).write_text(json.dumps(content, indent=2) + "\n")
