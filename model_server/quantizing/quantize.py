"""`launcher quantize`: a checkpoint in 4 bits, made of one that is not.

MODEL -> checked as `serve` does; refused where its 4 bits could not be served
      -> rows of tokens, of the operator's texts or drawn from the model
      -> layer by layer: what its linear ones read -> 4 bits -> what the next layer reads
      -> a folder beside OUT; read as `serve` reads it, and judged by rows that were held out
      -> OUT

The original computes by its own class and what was written by our executor, both in float32.
"""

import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model_server import zoo
from model_server.checkpoint import checkpoint
from model_server.checkpoint.check import CheckedCheckpoint, ModelSettings, check_checkpoint
from model_server.checkpoint.checkpoint import CONFIG_NAME, find_checkpoint
from model_server.checkpoint.tensor_files import TensorFiles
from model_server.config import QuantizeConfig
from model_server.engine.distributed import World
from model_server.errors import ModelRefused
from model_server.executor.int4 import PER_WORD, Int4Weight
from model_server.loading import load_model
from model_server.quantizing.calibration import Calibration
from model_server.quantizing.decoder import Decoder
from model_server.quantizing.gptq import gptq, round_to_nearest
from model_server.quantizing.rows import Rows
from model_server.quantizing.writing import (
    WeightsWriter,
    copy_files,
    new_folder,
    tensors_of,
    write_config,
)
from model_server.recipe.recipe import Moe

_log = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_LEAST_GROUP_LEN = 16
_NO_GGUF = "a GGUF file is served as it is; name the safetensors that it was made of"


@dataclass(frozen=True, slots=True)
class Quantized:
    """What was made.

    kl:         of next tokens, from the original's, in nats; the mean over held-out tokens
    same_share: of held-out tokens behind which both find the same next one likeliest
    """

    folder: Path
    weights_bytes: int
    original_bytes: int
    group_len: int
    num_held_out: int
    kl: float
    same_share: float

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.weights_bytes / 2**20:.1f} MiB of weights, of"
            f" {self.original_bytes / 2**20:.1f}, 4 bits in groups of {self.group_len}; as it is"
            f" served here, over {self.num_held_out} held-out tokens KL {self.kl:.4f} nats from the"
            f" original, the same first choice behind {self.same_share:.1%}"
        )


def quantize(config: QuantizeConfig) -> Quantized:
    """Raises ConfigRefused for a setting, another ShardError for a model that it cannot be."""
    out = config.out.expanduser().absolute()
    with new_folder(out) as folder:
        source = _source(config)
        checked = _checked(source)
        calibration = _calibration(config, source, checked)
        stored = checkpoint.check(source)
        is_half = all(each.dtype == "F16" for each in stored.values())
        model = zoo.load(
            source,
            checked.config,
            # In what the files have, they stay mapped.
            dtype=torch.float16 if is_half else checked.weights_dtype,
            device=_CPU,
            trust_remote_code=False,
            num_shards=1,
            left_out=checked.left_out,
        )
        decoder = Decoder(model, calibration.held_out[0])
        group_len = _group_len(decoder, config.group_size)
        rest = {name: each.shape for name, each in stored.items()}
        names = zoo.stored_names(model.module, rest)
        writer = WeightsWriter(folder, len(decoder) + 1)
        exact = [decoder.embedded(row) for row in calibration.held_out]
        read = []
        if config.method == "gptq":
            read = [decoder.embedded(row) for row in calibration.rows]
        for index in range(len(decoder)):
            started_s = time.monotonic()
            decoder.widen(index)
            exact = [decoder.run(index, row) for row in exact]
            tensors: dict[str, Tensor] = {}
            for name, weight in _in_4_bits(decoder, index, read, group_len):
                decoder.linears(index)[name].weight.data = weight.dense(torch.float32)
                stored_name = names[f"{name}.weight"]
                tensors |= tensors_of(stored_name.removesuffix(".weight"), weight)
                del rest[stored_name]
            writer.write(tensors)
            read = [decoder.run(index, row) for row in read]
            decoder.forget(index)
            _log.info(
                "layer %d of %d: %.1f s", index + 1, len(decoder), time.monotonic() - started_s
            )
        with ExitStack() as stack:
            files = TensorFiles.open(source, {name: name for name in rest}, _CPU, stack)
            writer.write({name: files.tensor(name, shape) for name, shape in rest.items()})
        writer.finish()
        copy_files(source, folder)
        write_config(folder, _content(source), group_len)
        kl, same_share = _judged(folder, decoder, calibration.held_out, exact)
    return Quantized(
        out,
        weights_bytes=_weights_bytes(out),
        original_bytes=_weights_bytes(source),
        group_len=group_len,
        num_held_out=sum(map(len, calibration.held_out)),
        kl=kl,
        same_share=same_share,
    )


def _source(config: QuantizeConfig) -> Path:
    """The folder of a checkpoint that is not quantized. Raises ModelRefused."""
    if config.model_id.endswith(".gguf"):
        raise ModelRefused(f"{config.model_id}: {_NO_GGUF}")
    source = find_checkpoint(config.model_id, config.revision)
    if any(source.glob("*.gguf")) and not any(source.glob("*.safetensors")):
        raise ModelRefused(f"{source}: {_NO_GGUF}")
    checkpoint.check(source)
    settings = _content(source).get("quantization_config")
    if settings:
        raise ModelRefused(
            f"{source}: is quantized already, by {settings.get('quant_method')}; name its original"
        )
    return source


def _content(source: Path) -> dict[str, Any]:
    return dict(json.loads((source / CONFIG_NAME).read_text(encoding="utf-8")))


def _checked(source: Path) -> CheckedCheckpoint:
    """Raises ModelRefused where no executor of ours would compute its 4 bits."""
    checked = check_checkpoint(ModelSettings(source, _CPU, dtype="float32"), 1)
    reason = checked.fallback_reason
    if checked.recipe is not None and any(isinstance(x.mlp, Moe) for x in checked.recipe.layers):
        reason = "it has experts, which are not served in 4 bits"
    if reason is not None:
        raise ModelRefused(f"{source}: its 4 bits could not be served: {reason}")
    return checked


def _calibration(config: QuantizeConfig, source: Path, checked: CheckedCheckpoint) -> Calibration:
    max_len = checked.facts.max_position_embeddings
    if max_len is None:
        raise ModelRefused(f"{source}: its config names no max_position_embeddings")
    if config.calibration is not None:
        return Calibration.of_texts(config.calibration, source, config.seed, max_len)
    _log.info("drawing texts from the model; with --calibration FILE it reads yours")
    return Calibration.drawn(load_model(ModelSettings(source, _CPU), World()), config.seed)


def _group_len(decoder: Decoder, asked: int) -> int:
    """What is asked for, or the greatest half, quarter, ... of it that divides all rows of weights.

    Raises ModelRefused for a layer that has no place in the format.
    """
    group_len = asked
    for index in range(len(decoder)):
        for name, linear in decoder.linears(index).items():
            if linear.in_features % _LEAST_GROUP_LEN or linear.out_features % PER_WORD:
                raise ModelRefused(
                    f"{name} has {linear.in_features} inputs and {linear.out_features} outputs: in"
                    f" 4 bits they go by {_LEAST_GROUP_LEN} and by {PER_WORD}"
                )
            while linear.in_features % group_len:
                group_len //= 2
    if group_len != asked:
        _log.info("groups of %d: %d does not divide all rows of weights", group_len, asked)
    return group_len


@torch.inference_mode()
def _in_4_bits(
    decoder: Decoder,
    index: int,
    read: Sequence[Tensor],
    group_len: int,
) -> Iterator[tuple[str, Int4Weight]]:
    """read: rows that the layer reads; none: numbers are rounded each by itself"""
    linears = decoder.linears(index)
    if not read:
        for name, linear in linears.items():
            yield name, round_to_nearest(linear.weight, group_len)
        return
    for names, products in decoder.products(index, read):
        # What reads the same is quantized as one.
        weights = [linears[name].weight for name in names]
        whole = gptq(torch.cat(weights), products, group_len)
        first = 0
        for name, weight in zip(names, weights, strict=True):
            yield name, whole.rows(torch.arange(first, first + len(weight)))
            first += len(weight)


@torch.inference_mode()
def _judged(
    folder: Path, decoder: Decoder, rows: Sequence[Tensor], exact: Sequence[Tensor]
) -> tuple[float, float]:
    """KL divergence and share of the same first choices; see Quantized.

    exact: what the last layer of the original gave of each row
    """
    model = load_model(ModelSettings(folder, _CPU, dtype="float32"), World())
    divergence = 0.0
    num_same = 0
    for row, hidden in zip(rows, exact, strict=True):
        expected = decoder.logits(row, hidden).log_softmax(-1)
        actual = Rows(model, 1, len(row)).step([row.tolist()]).log_softmax(-1)
        divergence += float((expected.exp() * (expected - actual)).sum())
        num_same += int((expected.argmax(-1) == actual.argmax(-1)).sum())
    num_tokens = sum(map(len, rows))
    return divergence / num_tokens, num_same / num_tokens


def _weights_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))
