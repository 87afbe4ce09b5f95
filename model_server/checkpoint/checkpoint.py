"""A checkpoint's folder: found or downloaded by name, and its files checked before the load.

    model.safetensors  |  model.safetensors.index.json + the files that it names
    gguf_index.json + the GGUF file that it names, where the launcher has read one

A safetensors file opens with the length of its JSON header (8 bytes, little endian), the header,
and then the tensors at the offsets that the header gives; so a file that was cut off is known by
its size (https://github.com/huggingface/safetensors, "Format"). Knows no model and no torch.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from model_server.checkpoint.gguf_file import GgufFile
from model_server.errors import CheckpointBroken, FetchStalled, ModelRefused
from processes.gguf_cache import files_of_gguf
from processes.model_folders import DownloadStalled, HubError, find_folder

CONFIG_NAME = "config.json"


_ADAPTER_NAME = "adapter_config.json"


WEIGHTS_NAME = "model.safetensors"


INDEX_NAME = "model.safetensors.index.json"


SMALL_FILES = ("*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt", "*.py")


# The format's own limit; a larger number is not a header's length.
_MAX_HEADER_BYTES = 100_000_000


_ITEM_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("F8_E5M2", "F8_E4M3", "F8_E8M0", "I8", "U8", "BOOL"), 8),
}


def find_checkpoint(model_id: str, revision: str | None) -> Path:
    """The folder of `model_id`, a local folder or a hub id; downloads what is missing.

    Of OWNER/NAME/[FOLDER/]FILE.gguf it is that file, with all that it was split into. Other weights
    are safetensors only: unpickling runs code. Raises ModelRefused with the reason.
    """
    names = model_id.split("/")
    num_of_repository = 2 if len(names) > 2 else 1
    repository = "/".join(names[:num_of_repository])
    gguf_name = "/".join(names[num_of_repository:])
    is_gguf = gguf_name.endswith(".gguf")
    try:
        if is_gguf:
            wanted = [str(each) for each in files_of_gguf(Path(gguf_name))]
            path = find_folder(repository, revision, wanted) / gguf_name
        else:
            path = find_folder(model_id, revision, (*SMALL_FILES, "*.safetensors"))
    except DownloadStalled as error:
        raise FetchStalled(str(error)) from error
    except HubError as error:
        raise ModelRefused(str(error)) from error
    if is_gguf and not path.is_file():
        raise ModelRefused(f"{repository!r} has no file {gguf_name}")
    if is_gguf or Path(model_id).expanduser().is_dir() or any(path.glob("*.safetensors")):
        return path
    raise ModelRefused(
        f"{model_id!r} offers no .safetensors weights: pickled ones run code when they are loaded; "
        f"name a repository that has safetensors, or one of its GGUF files as {model_id}/FILE.gguf"
    )


class StoredTensor(NamedTuple):
    """A tensor of a file; `dtype` in the format's own words, as "BF16"."""

    shape: tuple[int, ...]
    dtype: str


def check(folder: Path) -> Mapping[str, StoredTensor]:
    """Check config and weights of a checkpoint; returns its tensors.

    Raises CheckpointBroken, which names the file and what is wrong with it.
    """
    if not folder.is_dir():
        raise CheckpointBroken(f"model folder {str(folder)!r} does not exist")
    _require_no_adapter(folder)
    _json_object(folder / CONFIG_NAME)
    gguf = GgufFile.of_folder(folder)
    if gguf is not None:
        return {
            name: StoredTensor(each.shape, each.parts[0].kind)
            for name, each in gguf.tensors.items()
        }
    if (folder / WEIGHTS_NAME).is_file():
        return _stored_tensors(folder / WEIGHTS_NAME)
    if (folder / INDEX_NAME).is_file():
        return _indexed_tensors(folder)
    raise CheckpointBroken(_no_weights(folder))


def _require_no_adapter(folder: Path) -> None:
    """Raises CheckpointBroken for what is no model but a change of one."""
    if (folder / CONFIG_NAME).is_file() or not (folder / _ADAPTER_NAME).is_file():
        return
    base = _json_object(folder / _ADAPTER_NAME).get("base_model_name_or_path")
    raise CheckpointBroken(
        f"{folder}: is an adapter for {base or 'another model'}: serve that, with"
        f" --lora-adapters NAME={folder}"
    )


def _indexed_tensors(folder: Path) -> Mapping[str, StoredTensor]:
    index = folder / INDEX_NAME
    weight_map = _json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointBroken(f"{index}: has no weight_map")
    names_by_file: dict[str, set[str]] = {}
    for tensor_name, file_name in weight_map.items():
        if not isinstance(file_name, str) or Path(file_name).name != file_name:
            raise CheckpointBroken(f"{index}: {tensor_name!r} lies in no file of this folder")
        names_by_file.setdefault(file_name, set()).add(tensor_name)
    missing_files = sorted(name for name in names_by_file if not (folder / name).is_file())
    if missing_files:
        raise CheckpointBroken(
            f"{folder}: {len(missing_files)} of {len(names_by_file)} weight files that"
            f" {INDEX_NAME} names are missing: {_some(missing_files)}"
        )
    tensors: dict[str, StoredTensor] = {}
    for file_name, names in sorted(names_by_file.items()):
        of_file = _stored_tensors(folder / file_name)
        tensors |= {name: tensor for name, tensor in of_file.items() if name in names}
        absent = sorted(names - of_file.keys())
        if absent:
            raise CheckpointBroken(
                f"{folder / file_name}: lacks {len(absent)} tensors that {INDEX_NAME} places"
                f" there: {_some(absent)}"
            )
    return tensors


def _stored_tensors(path: Path) -> dict[str, StoredTensor]:
    """The tensors of a safetensors file whose header agrees with its size."""
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if file_bytes < 8 or not 0 < header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
            raise CheckpointBroken(
                f"{path}: is no whole safetensors file: {file_bytes} bytes,"
                f" of which the header claims {header_bytes}"
            )
        try:
            header = json.loads(file.read(header_bytes))
        except ValueError as error:
            raise CheckpointBroken(f"{path}: its header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointBroken(f"{path}: its header is not a JSON object")
    header.pop("__metadata__", None)
    end = max((_end_offset(path, name, entry) for name, entry in header.items()), default=0)
    expected_bytes = 8 + header_bytes + end
    if file_bytes != expected_bytes:
        fault = "is truncated" if file_bytes < expected_bytes else "has bytes too many"
        raise CheckpointBroken(
            f"{path}: {fault}: {file_bytes} bytes, its header promises {expected_bytes}"
        )
    return {
        name: StoredTensor(tuple(map(int, entry["shape"])), str(entry["dtype"]))
        for name, entry in header.items()
    }


def _end_offset(path: Path, name: str, entry: Any) -> int:
    try:
        begin, end = map(int, entry["data_offsets"])
        shape = tuple(map(int, entry["shape"]))
        dtype = str(entry["dtype"])
    except (TypeError, KeyError, ValueError) as error:
        raise CheckpointBroken(f"{path}: the header entry of {name!r} is malformed") from error
    bits = _ITEM_BITS.get(dtype)
    if not 0 <= begin <= end or (bits and math.prod(shape) * bits != (end - begin) * 8):
        raise CheckpointBroken(
            f"{path}: {name!r} of {dtype} {shape} does not fit its bytes {begin} to {end}"
        )
    return end


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointBroken(f"{path.parent}: has no {path.name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointBroken(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(content, Mapping):
        raise CheckpointBroken(f"{path}: is not a JSON object")
    return dict(content)


def _no_weights(folder: Path) -> str:
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    if pickled:
        return (
            f"{folder}: has pickled weights ({_some(pickled)}) but no {WEIGHTS_NAME};"
            " unpickling runs code, so convert them to safetensors"
        )
    return f"{folder}: has neither {WEIGHTS_NAME} nor {INDEX_NAME}"


def _some(names: Iterable[str], limit: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
