"""Makes a checkpoint's folder of a GGUF file: small files, and an index in place of weights.

    python -m model_server.checkpoint.gguf_conversion FILE TARGET

config.json (gguf_config), the tokenizer and the chat templates are made of the file's metadata; of
the weights only the places are written (gguf_file). A tensor that the model's class does not have
is refused.

Exit codes: 0 made, with a line about the file on stdout; 1 not, with a line on stderr.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gguf import (
    GGML_QUANT_SIZES,
    MODEL_ARCH,
    MODEL_ARCH_NAMES,
    GGMLQuantizationType,
    TensorNameMap,
    get_tensor_name_map,
)

from model_server import zoo
from model_server.checkpoint.gguf_config import ROTATION_TENSORS, config_of, sampling_of
from model_server.checkpoint.gguf_file import GgufFile, GgufPart, GgufTensor
from model_server.checkpoint.gguf_kinds import PACKED_KINDS, PLAIN_KINDS, StoredRows
from model_server.checkpoint.gguf_source import GgufSource
from model_server.checkpoint.gguf_tokenizer import write_tokenizer
from model_server.errors import ModelRefused, ShardError
from model_server.recipe.small import saved_buffers
from processes.gguf_cache import DESCRIPTION


def convert(path: Path, target: Path) -> str:
    """Write the folder; answers what the file is, in one line. Raises ModelRefused and the like."""
    try:
        source = GgufSource(path.absolute())
        (target / "config.json").write_text(json.dumps(config_of(source)))
        (target / "generation_config.json").write_text(json.dumps(sampling_of(source)))
        write_tokenizer(source.metadata, target)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelRefused(f"its metadata cannot be read: {error!r}") from error
    config = zoo.read_config(target, trust_remote_code=False)
    module = zoo.build_empty(config, trust_remote_code=False).module
    numbers = dict(module.named_parameters()) | saved_buffers(module)
    tensors = _placed(source, config, {name: tuple(each.shape) for name, each in numbers.items()})
    _require_readable({part.kind for tensor in tensors.values() for part in tensor.parts})
    GgufFile(source.paths, tensors).write_index(target)
    described = _described(source, tensors)
    (target / DESCRIPTION).write_text(described)
    return described


def _placed(
    source: GgufSource, config: Any, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, GgufTensor]:
    """Each of the model's parameters in the file. Raises ModelRefused unless all of both agree."""
    (architecture,) = [a for a, name in MODEL_ARCH_NAMES.items() if name == source.architecture]
    num_layers = config.num_hidden_layers
    names = get_tensor_name_map(MODEL_ARCH(architecture), num_layers)
    placed: dict[str, GgufTensor] = {}
    drafts = range(num_layers, num_layers + source.num_draft_layers)
    left_out = (*ROTATION_TENSORS, *(f"blk.{index}." for index in drafts))
    unused = {name for name in source.tensors if not name.startswith(left_out)}
    for name, shape in shapes.items():
        stored_names = _stored_names(source, names, name)
        for stored_name in stored_names:
            whole = source.stored_in(stored_name)
            if whole not in unused and (whole == stored_name or whole not in source.tensors):
                raise ModelRefused(f"lacks {stored_name}, which its architecture has")
            unused.discard(whole)
        placed[name] = _tensor(source, config, stored_names, shape)
    if unused:
        raise ModelRefused(
            f"has {len(unused)} tensors that are not served with its architecture, as"
            f" {min(unused):.80}"
        )
    return placed


def _stored_names(source: GgufSource, names: TensorNameMap, name: str) -> list[str]:
    """Of the file's tensors that a parameter is made of."""
    for own, known in source.rules.names.items():
        name = name.replace(own, known)
    wanted = [name]
    # In a class some names have no end, as those of all experts' weights.
    if not name.endswith((".weight", ".bias", ".A_log", ".D")):
        stem, end = name.removesuffix("_bias"), ".bias" if name.endswith("_bias") else ".weight"
        wanted = [stem + end]
        if stem.endswith(".gate_up_proj"):
            wanted = [stem.replace("gate_up", part) + end for part in ("gate", "up")]
    if "gate+up" in name:
        wanted = [name.replace("gate+up", part) for part in ("gate", "up")]
    # Older files have it whole.
    if ".in_proj_qkvz." in name and names.get_name(name, (".weight",)) not in source.tensors:
        wanted = [name.replace("qkvz", part) for part in ("qkv", "z")]
    stored: list[str] = []
    for each in wanted:
        # What older versions of a class call `backbone`.
        aliases = (each, each.replace("model.", "backbone.", 1))
        found = [names.get_name(alias, try_suffixes=(".weight", ".bias")) for alias in aliases]
        stored.append(found[0] or found[1] or each)
    # With --fuse-gate-up-exps the converter has joined them.
    fused = stored[0].replace(".ffn_gate_exps.", ".ffn_gate_up_exps.")
    is_fused = fused != stored[0] and fused in source.tensors
    return [fused] if is_fused and not source.rules.experts_turned else stored


def _tensor(
    source: GgufSource, config: Any, stored_names: Sequence[str], shape: tuple[int, ...]
) -> GgufTensor:
    parts = tuple(_part(source, config, stored_name, len(shape)) for stored_name in stored_names)
    axis = int(len(parts) > 1 and "_exps." in stored_names[0])
    if any(len(part.shape) <= axis for part in parts):
        raise ModelRefused(f"{' and '.join(stored_names)}: has too few dimensions")
    is_turned = source.rules.experts_turned
    num_turns = parts[0].shape[axis] if is_turned and len(parts) > 1 else 1
    if len(parts) == 2 and ".attn_qkv." in stored_names[0]:
        # Of Qwen3-Next, which has all that a key's heads need side by side.
        qkv, gate = parts
        num_turns = config.linear_num_key_heads
        key_len = num_turns * config.linear_key_head_dim
        ends = (0, key_len, 2 * key_len, qkv.shape[0])
        parts = (*(qkv.of_rows(*bounds) for bounds in pairwise(ends)), gate)
    if source.rules.qkv_by_heads and ".attn_qkv." in stored_names[0]:
        num_turns = config.num_attention_heads
        each_len = parts[0].shape[0] // 3
        parts = tuple(parts[0].of_rows(n * each_len, (n + 1) * each_len) for n in range(3))
    # Gates and ups.
    if len(parts) > 1 and parts[-1].shape != parts[-2].shape:
        raise ModelRefused(
            f"{' and '.join(stored_names)} have the unlike shapes {list(parts[-2].shape)} and"
            f" {list(parts[-1].shape)}"
        )
    inputs_first = is_turned and len(shape) == 3
    joined = list(parts[0].shape)
    joined[axis] = sum(part.shape[axis] for part in parts)
    if inputs_first:
        joined[1:] = reversed(joined[1:])
    # A row alone is stored as a vector, and a convolution's inputs, of one each, are left out; of a
    # state's vectors some are stored as rows.
    if len(shape) == 1:
        joined = [math.prod(joined)]
    if [n for n in joined if n != 1] != [n for n in shape if n != 1]:
        raise ModelRefused(
            f"{' and '.join(stored_names)} has the shape {joined}, and by its metadata the model's"
            f" is {list(shape)}"
        )
    return GgufTensor(shape, parts, axis, num_turns, inputs_first)


def _part(source: GgufSource, config: Any, stored_name: str, num_dimensions: int) -> GgufPart:
    """`num_dimensions`: in the class; behind them a file may have more, of one each."""
    whole = source.stored_in(stored_name)
    stored = source.tensors[whole]
    shape = tuple(map(int, reversed(stored.shape)))
    while len(shape) > num_dimensions and shape[0] == 1:
        shape = shape[1:]
    rules = source.rules
    num_heads = None
    if rules.is_interleaved and ".attn_q." in stored_name:
        num_heads = config.num_attention_heads
    if rules.is_interleaved and ".attn_k." in stored_name:
        num_heads = config.num_key_value_heads
    # But for those of gated delta rules.
    is_norm = stored_name.endswith("norm.weight") and ".ssm_norm." not in stored_name
    turned_rows = turned_columns = None
    if rules.first_heads_first:
        turned_rows, turned_columns = _turned_value_heads(config, stored_name)
    part = GgufPart(
        kind=stored.tensor_type.name,
        shape=shape,
        offset=int(stored.data_offset),
        file=source.files[whole],
        num_heads=num_heads,
        turned_rows=turned_rows,
        turned_columns=turned_columns,
        subtrahend=float(rules.norms_plus_one and is_norm),
        negative_exp=stored_name.endswith(".ssm_a"),
    )
    if whole == stored_name:
        return part
    keys_start = part.shape[0] - 2 * config.num_key_value_heads * config.head_dim
    values_start = (keys_start + part.shape[0]) // 2
    bounds = {
        "attn_q": (0, keys_start),
        "attn_k": (keys_start, values_start),
        "attn_v": (values_start, part.shape[0]),
    }
    return part.of_rows(*bounds[stored_name.split(".")[2]])


def _turned_value_heads(
    config: Any, stored_name: str
) -> tuple[tuple[int, int, int] | None, tuple[int, int] | None]:
    """See GgufPart: where the class has all heads of a key, the file has one of each key."""
    num_keys = config.linear_num_key_heads
    num_each = config.linear_num_value_heads // num_keys
    kind = stored_name.split(".")[2:3]
    if num_each == 1:
        return None, None
    if kind == ["ssm_out"]:
        return None, (num_keys, num_each)
    if kind in (["attn_qkv"], ["ssm_conv1d"]):
        return (2 * num_keys * config.linear_key_head_dim, num_keys, num_each), None
    if kind in (["attn_gate"], ["ssm_alpha"], ["ssm_beta"], ["ssm_a"], ["ssm_dt"]):
        return (0, num_keys, num_each), None
    return None, None


def _require_readable(kinds: Iterable[str]) -> None:
    """Raises ModelRefused for a kind whose blocks nobody here can read."""
    for kind in kinds:
        _, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
        try:
            StoredRows(kind, np.zeros((1, block_bytes), np.uint8)).numbers()
        except NotImplementedError as error:
            raise ModelRefused(f"has tensors of {kind}, which cannot be dequantized") from error


def _described(source: GgufSource, tensors: Mapping[str, GgufTensor]) -> str:
    numbers: Counter[str] = Counter()
    num_bytes = 0
    for tensor in tensors.values():
        for part in tensor.parts:
            numbers[part.kind] += part.num_numbers
            num_bytes += part.num_bytes
    total = numbers.total()
    shares = ", ".join(f"{100 * n / total:.0f} % {kind}" for kind, n in numbers.most_common(3))
    described = (
        f"{source.paths[0]}: {source.architecture}, {shares}: {8 * num_bytes / total:.2f} bits a"
        f" weight, {num_bytes / 2**20:.0f} MiB"
    )
    widened = sum(n for kind, n in numbers.items() if kind not in PACKED_KINDS | PLAIN_KINDS)
    if not widened:
        return described
    return f"{described}; on a CPU {100 * widened / total:.0f} % of it is dequantized"


def main(argv: Sequence[str]) -> int:
    """Convert one file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m model_server.checkpoint.gguf_conversion")
    parser.add_argument("file", type=Path)
    parser.add_argument("target", type=Path)
    given = parser.parse_args(argv)
    try:
        sys.stdout.write(f"{convert(given.file, given.target)}\n")
    except ShardError as error:
        # What a file says may have lines of its own.
        reason = " ".join(str(error).split())
        sys.stderr.write(f"error: {given.file}: {reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
