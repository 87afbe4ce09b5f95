"""Whether a model's images are served: an image of noise, seen by transformers and by an executor.

    take:   its processor makes the image
    begin:  before its weights are packed, what the class hands its decoder, and its logits
    end:    once they are: the executor's logits must be the same

A model that does not pass is served for text alone, and says why. Where ranks hold a part of a
recipe's weights each, none has logits to compare, as of text: each looks at the image by itself.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from model_server.errors import ImageRefused
from model_server.executor.dense import in_wide_rows, logits_in_chunks
from model_server.executor.dense_cpu import DenseCpu
from model_server.executor.dense_cuda import DenseCuda
from model_server.executor.evidence import NOT_KEPT, OF_IMAGES, KeptEvidence
from model_server.executor.executor import Executor, ModelSight
from model_server.eyes import Blind, Eyes, beside
from model_server.images import Gallery, SequenceImages, tensors_of
from model_server.recipe.dense_torch import each_once
from model_server.recipe.proof import MAX_ERRORS, relative_error
from model_server.recipe.recipe import Recipe
from model_server.zoo import EAGER, HfModel, leave_out
from processes.image_processor import ImageProcessor, NoProcessor, ProcessedImage
from proto.contract import Image, ImageTensor

_log = logging.getLogger(__name__)

_NOISE_SHAPE = (48, 64, 3)
# Of text, around the image.
_NUM_BEFORE = 9
_NUM_BEHIND = 8
# A tensor of one number a token has the tokens' kinds; 0 is text, whatever the class.
_KINDS = "token_type_ids"
# What is kept of it beside what a processor makes, by its names.
_SPAN_IDS = "evidence.span_ids"
_NATIVE = "evidence.native"


class _Proof(NamedTuple):
    """A prompt with an image, and what transformers makes of it.

    eyes_model: what looks at images for the model
    expected:   logits [num_tokens, vocab_size] in the dtype of the weights; None: not known
    row_scale:  see Eyes
    """

    model: HfModel
    eyes_model: HfModel
    recipe: Recipe | None
    token_ids: Tensor
    image: Image
    expected: Tensor | None
    row_scale: float


class Seeing:
    """What is found of a model's sight as it is loaded; in the end `sight` or `blind_reason`.

    folder:         of the checkpoint, with its processor
    image_token_id: None: it does not see, for the reason that is given, if there is one
    left_out:       names of the parts that it does without then
    kept:           what an earlier shard left, and a later one finds
    """

    def __init__(
        self,
        folder: Path,
        image_token_id: int | None,
        left_out: Sequence[str],
        blind_reason: str | None,
        kept: KeptEvidence = NOT_KEPT,
        *,
        trust_remote_code: bool = False,
    ) -> None:
        self.sight: ModelSight | None = None
        self.blind_reason = blind_reason
        self._folder = folder
        self._trust_remote_code = trust_remote_code
        self._image_token_id = image_token_id
        self._left_out = left_out
        self._kept = kept
        self._native: Tensor | None = None
        self._noise: ProcessedImage | None = None
        self._proof: _Proof | None = None

    @property
    def may_see(self) -> bool:
        """Whether the parts that see are to be loaded, or kept."""
        return self._noise is not None and self.blind_reason is None

    def take(self, noise: ProcessedImage | None) -> None:
        """Take an image; None: the checkpoint's processor makes one."""
        if self._image_token_id is None:
            return
        found = self._kept.read(OF_IMAGES)
        if found is not None:
            self._native = found.pop(_NATIVE)
            span_ids = tuple(found.pop(_SPAN_IDS).tolist())
            noise = ProcessedImage(span_ids, {name: each.numpy() for name, each in found.items()})
        try:
            self._noise = noise or _noise(self._folder, self._trust_remote_code)
        except Blind as reason:
            self.be_blind(str(reason))

    def begin(
        self,
        model: HfModel,
        recipe: Recipe | None = None,
        *,
        proves: bool = True,
        whole: HfModel | None = None,
    ) -> None:
        """The model has its weights, which are to be packed by a recipe, if there is one.

        proves: there will be logits to compare
        whole:  what computes logits, where the model has no layers for text
        """
        if not self.may_see or self._noise is None or self._image_token_id is None:
            return
        try:
            proof = _proof(model, self._image_token_id, self._noise, recipe)
            if proves and self._native is None:
                tensors = tensors_of(proof.image)
                self._native = _native_logits(whole or model, proof.token_ids, tensors)
                own = {_SPAN_IDS: torch.tensor(self._noise.span_ids), _NATIVE: self._native}
                self._kept.write(OF_IMAGES, {**tensors, **own})
        except (torch.OutOfMemoryError, MemoryError):
            raise
        # The classes of other people fail in every way there is.
        except Exception as error:  # noqa: BLE001
            self.be_blind(_why(error))
            leave_out(model.module, self._left_out)
            return
        if proves and self._native is not None:
            proof = proof._replace(expected=self._native.to(proof.token_ids.device))
        self._proof = proof

    @torch.inference_mode()
    def end(self, executor: Executor, device: torch.device, max_error: float | None = None) -> None:
        """Its executor's logits are held to those of transformers; what sees is on `device`.

        max_error: None: what rounding to the weights' dtype explains
        """
        proof = self._proof
        self._proof = None
        if proof is None or self._image_token_id is None:
            return
        try:
            self.sight = self._sight(proof, executor, device, max_error)
        # Text is served all the same.
        except Exception as error:  # noqa: BLE001
            self.be_blind(_why(error))
        if self.sight is None:
            leave_out(proof.model.module, self._left_out)

    def _sight(
        self, proof: _Proof, executor: Executor, device: torch.device, max_error: float | None
    ) -> ModelSight:
        """Raises Blind, and whatever a class of other people raises."""
        assert self._image_token_id is not None
        module = proof.eyes_model.module
        if proof.recipe is not None:
            # What was packed is elsewhere.
            module.to(device)
        eyes = Eyes(proof.eyes_model, self._image_token_id, row_scale=proof.row_scale)
        image = proof.image
        span_ids = proof.token_ids[image.start : image.stop].cpu()
        sight = eyes.look(span_ids, tensors_of(image))
        is_turned = sight.layout.turns is not None
        found = ModelSight(
            eyes, is_turned, sight.key_ends is not None, self._folder, self._trust_remote_code
        )
        if is_turned and isinstance(executor, DenseCpu | DenseCuda):
            assert proof.recipe is not None
            executor.turn_by(
                [
                    _axes(module.get_submodule(each.module), each.arguments, each.layout, device)
                    for each in proof.recipe.rotary
                ]
            )
        if proof.expected is not None:
            gallery = Gallery(eyes)
            gallery.keep(image.digest, sight)
            max_error = max_error or MAX_ERRORS[proof.expected.dtype]
            _require_near(executor, gallery, found, proof, proof.expected, max_error)
        return found

    def be_blind(self, reason: str) -> None:
        """It does not see, for this reason."""
        self.sight = None
        self.blind_reason = reason
        _log.warning("images are not served: %s", reason)


def _noise(folder: Path, trust_remote_code: bool) -> ProcessedImage:
    """Raises Blind."""
    pixels = np.random.default_rng(0).integers(0, 256, _NOISE_SHAPE, dtype=np.uint8)
    try:
        processor = ImageProcessor(folder, trust_remote_code=trust_remote_code)
        return processor.process(pixels)
    except NoProcessor as reason:
        raise Blind(str(reason)) from reason
    # A processor fails in whatever way it likes.
    except Exception as error:
        raise Blind(f"its processor fails: {type(error).__name__}: {error}") from error


def _proof(
    model: HfModel,
    image_token_id: int,
    noise: ProcessedImage,
    recipe: Recipe | None,
) -> _Proof:
    """Without the logits. Raises Blind for a model that does not see."""
    if image_token_id not in noise.span_ids:
        raise Blind(f"its processor writes no image_token_id, {image_token_id}, for an image")
    image = Image(b"", _NUM_BEFORE, len(noise.span_ids), _tensors(noise))
    span_ids = torch.tensor(noise.span_ids)
    text = _text(model, {image_token_id, *noise.span_ids})
    before = torch.tensor([next(text) for _ in range(_NUM_BEFORE)])
    behind = torch.tensor([next(text) for _ in range(_NUM_BEHIND)])
    device = next(model.module.parameters()).device
    token_ids = torch.cat((before, span_ids, behind)).to(device)
    row_scale = 1.0 if recipe is None else _row_scale(model, recipe, token_ids[:1])
    eyes_model = beside(model) if recipe is None else model
    return _Proof(model, eyes_model, recipe, token_ids, image, None, row_scale)


def _why(error: Exception) -> str:
    """It does not see, in words for operators."""
    if isinstance(error, Blind):
        return str(error)
    if isinstance(error, ImageRefused):
        return f"an image of noise is not seen: {error}"
    return f"with an image it fails: {type(error).__name__}: {error}"


def _tensors(noise: ProcessedImage) -> dict[str, ImageTensor]:
    return {
        name: ImageTensor(each.dtype.name, each.shape, each.tobytes())
        for name, each in noise.tensors.items()
    }


def _text(model: HfModel, others: set[int]) -> Iterator[int]:
    """Tokens that no class takes for anything but text."""
    config = model.module.config
    special = {
        value
        for part in (config, config.get_text_config())
        for name, value in vars(part).items()
        if name.endswith(("_token_id", "_token_index")) and isinstance(value, int)
    }
    for place in count(1):
        token_id = place * 7 % model.facts.vocab_size
        if token_id not in special | others:
            yield token_id


@torch.inference_mode()
def _native_logits(model: HfModel, token_ids: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
    """Of a prompt whose image is at _NUM_BEFORE."""
    weight = model.module.get_input_embeddings().weight
    given = {}
    for name, each in tensors.items():
        whole = F.pad(each, (_NUM_BEFORE, _NUM_BEHIND)) if name.endswith(_KINDS) else each
        dtype = weight.dtype if each.is_floating_point() else None
        given[name] = whole.to(weight.device, dtype)
    model.use(EAGER)
    logits: Tensor = model.module(input_ids=token_ids[None], use_cache=False, **given).logits
    return logits[0]


@torch.inference_mode()
def _row_scale(model: HfModel, recipe: Recipe, token_id: Tensor) -> float:
    """How much larger a recipe's embeddings are than those that the class hands its decoder.

    Some decoders multiply what they are handed, and some embeddings are scaled by themselves.
    """
    handed = model.module.get_input_embeddings()(token_id).float()
    row = model.module.get_parameter(recipe.embedding)[token_id].float() * recipe.embed_scale
    return float(row.norm() / handed.norm())


@torch.inference_mode()
def _axes(
    module: Any, arguments: Sequence[Any], layout: str, device: torch.device
) -> npt.NDArray[np.int64]:
    """[num_angles] by which of three positions each angle of a rotary module turns, as measured."""

    def angles(positions: list[int]) -> Tensor:
        turned = torch.tensor(positions, device=device)[:, None, None]
        cos, sin = module(torch.empty(1, device=device), turned, *arguments)
        return torch.stack([each_once(table.flatten(), layout) for table in (cos, sin)])

    still = angles([0, 0, 0])
    moved = [angles([5 * (axis == each) for each in range(3)]) - still for axis in range(3)]
    found: npt.NDArray[np.int64] = torch.stack(moved).abs().sum(1).argmax(0).cpu().numpy()
    return found


def _require_near(
    executor: Executor,
    gallery: Gallery,
    sight: ModelSight,
    proof: _Proof,
    expected: Tensor,
    max_error: float,
) -> None:
    """Raises Blind."""
    images = SequenceImages((proof.image,), proof.token_ids.tolist(), sight.is_turned)
    images.see(0, len(proof.token_ids), gallery)
    # Its first tokens are computed alone, unless they attend to what follows.
    cut = 0 if sight.sees_ahead else proof.image.span_len // 2
    lens = [_NUM_BEFORE - 2, 2 + cut, proof.image.span_len - cut + 1, _NUM_BEHIND - 2, 1]
    with in_wide_rows(executor):
        actual = logits_in_chunks(executor, proof.token_ids, lens, images)
    error = relative_error(actual, expected)
    # Written so that NaN does not pass.
    if not error <= max_error:
        raise Blind(
            f"with an image its logits are not those of transformers (relative error {error:.2g})"
        )
    _log.info("proven: with an image, too (relative error %.2g)", error)
