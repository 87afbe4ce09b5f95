"""A checkpoint's own processor, called for one image: the tokens and the tensors that stand for it.

It imports transformers, and with it what makes arrays of images, in seconds: only once a processor
is opened.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

# What a processor makes that a model's class is not given beside its tokens.
_NO_TENSORS = frozenset(("input_ids", "attention_mask"))
# Of images that `largest` tries. Processors make those of more than 17 million pixels smaller.
_MAX_SIDE = 4200
_MIN_SIDE = 64
_DTYPES: Mapping[str, Any] = {"f": np.float32, "i": np.int64, "b": np.bool_}


class NoProcessor(Exception):
    """Why the checkpoint's processor cannot be used."""


@dataclass(frozen=True, slots=True, eq=False)
class ProcessedImage:
    """span_ids: all tokens of an image, those of breaks and tiles among them

    tensors: what the model's class takes beside them, by its names: float32, int64 or bool
    """

    span_ids: tuple[int, ...]
    tensors: Mapping[str, npt.NDArray[Any]] = field(repr=False)


def hide_unfit_torchvision() -> str | None:
    """Make a torchvision that does not match torch look absent; returns what is wrong with it.

    Its import fails, and with it that of most of transformers: call this before.
    """
    if "torchvision" not in sys.modules and find_spec("torchvision") is None:
        return None
    try:
        import_module("torchvision")
    # It loads libraries that are linked to torch, and registers its operators there.
    except (AttributeError, ImportError, OSError, RuntimeError):
        sys.modules["torchvision"] = None  # type: ignore[assignment]
        torch = version("torch")
        return (
            f"torchvision {version('torchvision')} does not match torch {torch}: pip install"
            f" torchvision torch=={torch.partition('+')[0]}, from the index that torch is from"
        )
    return None


@contextmanager
def without_videos() -> Iterator[None]:
    """Let transformers open no part for videos, which nobody asks for.

    It demands torchvision, whose releases have to match those of torch.
    """
    from transformers.processing_utils import ProcessorMixin  # noqa: PLC0415

    mixin: Any = ProcessorMixin
    parts_of = mixin.get_attributes.__func__

    def parts_without_videos(kind: Any) -> list[str]:
        return [name for name in parts_of(kind) if "video" not in name]

    mixin.get_attributes = classmethod(parts_without_videos)
    try:
        yield
    finally:
        mixin.get_attributes = classmethod(parts_of)


class ImageProcessor:
    """marker:       the text that stands for an image where a prompt is written
    tensor_names: of all tensors that it makes of any image
    """

    def __init__(self, folder: Path, *, trust_remote_code: bool) -> None:
        """Raises NoProcessor for a checkpoint that has none, or where a package is missing."""
        unfit = hide_unfit_torchvision()
        # Of a worker that is forked before it is known which checkpoint it is for.
        from transformers import AutoProcessor  # noqa: PLC0415

        from_pretrained: Any = AutoProcessor.from_pretrained
        try:
            with without_videos():
                self._processor = from_pretrained(
                    folder, trust_remote_code=trust_remote_code, local_files_only=True
                )
            self.marker: str = self._processor.image_token
            names = frozenset(self._processor.model_input_names)
            self.tensor_names: frozenset[str] = names - _NO_TENSORS
        # A processor fails in whatever way it likes; some say which package they miss.
        except Exception as error:
            reason = " ".join(str(error).split())
            if unfit is not None and "torchvision" in reason.lower():
                reason = unfit
            raise NoProcessor(f"its processor cannot be used: {reason}") from error

    def process(self, image: Any) -> ProcessedImage:
        """image: pillow's in RGB, or an array [height, width, 3] of bytes.

        Raises what the processor raises.
        """
        made = self._processor(
            text=self.marker,
            images=[image],
            add_special_tokens=False,
            return_mm_token_type_ids=True,
            return_tensors="pt",
        )
        (span_ids,) = made["input_ids"].tolist()
        tensors = {}
        for name in self.tensor_names & made.keys():
            values = np.asarray(made[name])
            tensors[name] = np.ascontiguousarray(values, _DTYPES[values.dtype.kind])
        return ProcessedImage(tuple(span_ids), tensors)

    def largest(self, max_len: int) -> ProcessedImage:
        """What it makes of an image that is about as large as any of which a prompt has room.

        Raises what the processor raises.
        """
        # By its shape an image is cut into more tiles, or into fewer.
        shapes = [self._largest(max_len, ratio) for ratio in (1.0, 0.75)]
        return max(shapes, key=lambda made: sum(each.nbytes for each in made.tensors.values()))

    def _largest(self, max_len: int, ratio: float) -> ProcessedImage:
        side = _MAX_SIDE
        while True:
            made = self.process(np.zeros((int(ratio * side), side, 3), np.uint8))
            excess = len(made.span_ids) / max_len
            if excess <= 1.0 or side <= _MIN_SIDE:
                return made
            # Processors make images smaller by themselves, too; then this is not enough yet.
            side = int(side * min(0.8, 0.97 / sqrt(excess)))
