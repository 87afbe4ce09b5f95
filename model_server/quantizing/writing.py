"""A checkpoint in 4 bits, in the format `gptq`, written beside the one that it is made of.

name.weight -> name.qweight, name.qzeros, name.scales, name.g_idx
               see checkpoint/int4_checkpoint.py
all other tensors, tokenizer, chat templates and licences as they are
config.json   as it is, and quantization_config
"""

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from model_server.checkpoint.checkpoint import (
    CONFIG_NAME,
    INDEX_NAME,
    SMALL_FILES,
    WEIGHTS_NAME,
    check,
)
from model_server.checkpoint.tensor_files import TensorFiles
from model_server.errors import ConfigRefused
from model_server.executor.int4 import Int4Weight, packed

_LICENCES = ("LICENSE*", "LICENCE*", "NOTICE*")
_CPU = torch.device("cpu")


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
    """Writes tensors to files, and an index where these are several.

    file_bytes: of a file, about; as many are held in memory
    """

    def __init__(self, folder: Path, file_bytes: int = 2 << 30) -> None:
        self._folder = folder
        self._file_bytes = file_bytes
        self._waiting: dict[str, Tensor] = {}
        self._names: list[list[str]] = []  # by file
        self._num_bytes = 0

    def add(self, tensors: Mapping[str, Tensor]) -> None:
        """Of one name each, in memory or mapped."""
        for name, tensor in tensors.items():
            self._waiting[name] = tensor
            self._num_bytes += tensor.nbytes
            if sum(each.nbytes for each in self._waiting.values()) >= self._file_bytes:
                self._flush()

    def finish(self) -> None:
        """Once all are added."""
        if self._waiting:
            self._flush()
        num_files = len(self._names)
        if num_files == 1:
            self._path(0).rename(self._folder / WEIGHTS_NAME)
            return
        weight_map: dict[str, str] = {}
        for index, names in enumerate(self._names):
            file_name = f"model-{index + 1:05}-of-{num_files:05}.safetensors"
            self._path(index).rename(self._folder / file_name)
            weight_map |= dict.fromkeys(names, file_name)
        content = {"metadata": {"total_size": self._num_bytes}, "weight_map": weight_map}
        (self._folder / INDEX_NAME).write_text(json.dumps(content, indent=2))

    def _flush(self) -> None:
        path = self._path(len(self._names))
        # That library's own files are for their owner alone, whatever the operator's mask says.
        path.touch()
        mode = path.stat().st_mode
        save_file(self._waiting, path, {"format": "pt"})
        path.chmod(mode)
        self._names.append(list(self._waiting))
        self._waiting = {}

    def _path(self, index: int) -> Path:
        return self._folder / f"{index}.safetensors"


def copy_tensors(source: Path, names: Collection[str], writer: WeightsWriter) -> None:
    """These of a checkpoint, as they are."""
    with ExitStack() as stack:
        files = TensorFiles.open(source, {name: name for name in names}, _CPU, stack)
        for name, stored in check(source).items():
            if name in names:
                writer.add({name: files.tensor(name, stored.shape)})
        writer.finish()


def copy_files(source: Path, target: Path) -> None:
    """What a checkpoint has beside weights and config."""
    for pattern in (*SMALL_FILES, *_LICENCES):
        for path in source.glob(pattern):
            if path.name not in (CONFIG_NAME, INDEX_NAME) and path.is_file():
                shutil.copyfile(path, target / path.name)


def write_config(
    folder: Path, original: Mapping[str, Any], group_len: int, modules: Collection[str] | None
) -> None:
    """modules: of a layer, those in 4 bits; None: all of its linear ones"""
    settings = {
        "quant_method": "gptq",
        "checkpoint_format": "gptq",
        "bits": 4,
        "group_size": group_len,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
    }
    if modules is not None:
        settings["modules_in_block_to_quantize"] = [sorted(modules)]
    content = {**original, "quantization_config": settings}
    (folder / CONFIG_NAME).write_text(json.dumps(content, indent=2) + "\n")
