"""What sees in a model of transformers: an image's span of tokens to the rows that stand for it.

    span, tensors -> the class's own forward, stopped where it calls its decoder -> Sight

No family is known here. What the decoder is handed there are the rows, where their tokens stand in
its rotary positions, and rows that it adds behind its first layers. A class that hands it anything
else is not served with images.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from model_server.errors import ImageRefused
from model_server.zoo import HfModel

# By what names a decoder is handed what it computes with, whatever its class.
EMBEDDED = "inputs_embeds"
POSITIONS = "position_ids"
DEEP = "deepstack_visual_embeds"
DEEP_PLACES = "visual_pos_masks"
_MASK = "attention_mask"
_KNOWN = frozenset((EMBEDDED, POSITIONS, DEEP, DEEP_PLACES, _MASK))
_SDPA = "sdpa"
# Of rotary positions. Some classes have one more, for masks, before them.
_NUM_AXES = 3


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the tokens of a span stand, counted from its first one.

    turns: [3, span_len] int64 rotary positions; None: as text does
    reach: how far behind the first token the one behind the span stands
    """

    turns: Tensor | None
    reach: int


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """What an image's span is for the decoder.

    places:   [num_rows] int64 on the host, the span's tokens that rows stand for
    rows:     [1 + num_deep, num_rows, hidden_size]: what is embedded, and what is added behind each
              of the first layers
    key_ends: [span_len] int64, up to which token of the span each attends; None: to its own
    """

    places: Tensor
    rows: Tensor
    layout: Layout
    key_ends: Tensor | None


class Blind(Exception):
    """Why a model is served without images."""


class _Handed(Exception):
    def __init__(self, named: dict[str, Any]) -> None:
        super().__init__()
        self.named = named


def decoder_of(module: Any) -> nn.Module:
    """The part of a model that has its embedding, and so is for text."""
    embedding = module.get_input_embeddings()
    name = next(name for name, part in module.named_modules() if part is embedding)
    return module.get_submodule(name.rpartition(".")[0])


def beside(model: HfModel) -> HfModel:
    """The same weights in modules that steps do not call, without layers for text."""
    module = model.module
    shared = {id(each): each for each in (*module.parameters(), *module.buffers())}
    for part in decoder_of(module).modules():
        if isinstance(part, nn.ModuleList):
            shared[id(part)] = nn.ModuleList()
    return HfModel(deepcopy(module, shared), model.left_out)


class Eyes:
    """The parts of a model that see. Two threads may look at a time, and ranks by themselves.

    model:          which steps do not call
    image_token_id: the token of a span in whose place a row goes
    row_scale:      of rows, where an executor's embeddings are larger than the class's own

    Raises Blind for a model that is all decoder, or whose other parts are divided over ranks.
    """

    def __init__(self, model: HfModel, image_token_id: int, *, row_scale: float = 1.0) -> None:
        self.image_token_id = image_token_id
        module = model.module
        self._model = model
        self._decoder = decoder_of(module)
        self._row_scale = row_scale
        texts = (self._decoder, module.get_output_embeddings())
        own = {id(each) for part in texts if part is not None for each in part.parameters()}
        tower = [each for each in module.parameters() if id(each) not in own]
        if not tower:
            raise Blind("nothing in it sees")
        if any(isinstance(each, DTensor) for each in tower):
            raise Blind("what sees in it is divided over the ranks")
        self._dtype = tower[0].dtype
        self._device = tower[0].device
        embedding = module.get_input_embeddings()
        width = module.config.get_text_config().hidden_size
        blank = torch.zeros(1, 1, width, dtype=embedding.weight.dtype, device=self._device)
        # What is embedded of text is not looked at.
        embedding.forward = lambda token_ids: blank.expand(*token_ids.shape, -1).clone()

    def look(self, span_ids: Tensor, tensors: Mapping[str, Tensor]) -> Sight:
        """span_ids [span_len] int64; tensors: what the class takes of this one image.

        Raises ImageRefused for what its class does not take, or a decoder beyond what is known
        here, and torch.OutOfMemoryError or MemoryError.
        """
        if not any(tensor.is_floating_point() for tensor in tensors.values()):
            raise ImageRefused("its tensors are integers alone: nothing shows the image")
        named = self._handed(span_ids, tensors)
        others = sorted(name for name in named.keys() - _KNOWN if _matters(named[name]))
        if others:
            raise ImageRefused(f"its decoder is handed {', '.join(others)}, too")
        places = (span_ids == self.image_token_id).nonzero()[:, 0]
        embedded = named[EMBEDDED][0].index_select(0, places.to(self._device))
        rows = torch.stack([embedded * self._row_scale, *(named.get(DEEP) or ())])
        span_len = len(span_ids)
        return Sight(places, rows, _layout(named, span_len), _key_ends(named, span_len))

    def layout(self, span_ids: Tensor, tensors: Mapping[str, Tensor]) -> Layout:
        """Of an image's tensors of integers. Raises as `look`."""
        integers = {name: each for name, each in tensors.items() if not each.is_floating_point()}
        return _layout(self._handed(span_ids, integers), len(span_ids))

    @torch.inference_mode()
    def _handed(self, span_ids: Tensor, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """What the class's forward hands to its decoder, by name."""
        given = {
            name: each.to(self._device, self._dtype if each.is_floating_point() else None)
            for name, each in tensors.items()
        }
        try:
            # Its tower has no pages, and scores of a large image would take gigabytes.
            self._model.use(_SDPA)
            with self._stopped():
                self._model.module(
                    input_ids=span_ids[None].to(self._device), use_cache=False, **given
                )
        except _Handed as handed:
            return handed.named
        except (torch.OutOfMemoryError, MemoryError):
            raise
        # The classes of other people fail in every way there is.
        except Exception as error:
            raise ImageRefused(f"{type(error).__name__}: {error}") from error
        raise ImageRefused("its class calls no decoder")

    @contextmanager
    def _stopped(self) -> Iterator[None]:
        def stop(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> NoReturn:
            if args:
                raise TypeError("its decoder is handed something without a name")
            raise _Handed(named)

        handle = self._decoder.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()


def _layout(named: Mapping[str, Any], span_len: int) -> Layout:
    positions = named.get(POSITIONS)
    if positions is None or positions.numel() < _NUM_AXES * span_len:
        return Layout(None, span_len)
    turns = positions.reshape(-1, span_len)[-_NUM_AXES:].cpu()
    reach = int(turns.max()) + 1
    if reach > span_len:
        # Tables of angles end where the longest text does.
        raise ImageRefused(f"its positions reach {reach}, of {span_len} tokens")
    return Layout(turns, reach)


def _key_ends(named: Mapping[str, Any], span_len: int) -> Tensor | None:
    """By the masks [1, heads, span_len, span_len] of all kinds of layers."""
    given = named.get(_MASK)
    masks = given.values() if isinstance(given, Mapping) else [given]
    own = torch.arange(span_len) + 1
    ends = own
    for mask in masks:
        if mask is not None and mask.dim() == 4:
            is_seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
            ends = torch.maximum(ends, (is_seen.cpu() * own).amax(1))
    return ends if (ends > own).any() else None


def _matters(value: Any) -> bool:
    """Whether a decoder may compute with it; tokens' kinds decide which image they are of."""
    if isinstance(value, Tensor):
        return value.is_floating_point()
    return value is not None and not isinstance(value, bool | int | str)
