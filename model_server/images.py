"""The images of one sequence: what is seen of them, and where the tokens behind them stand.

    index:      0 .. 2 | 3 ...... 11 | 12 .. 14 | 15 ... 20 | 21 ..
    prompt:     text   | image 0     | text     | image 1   | text
    positions:  0 .. 2 | its layout  |  8 .. 10 | its layout| 14 ..

An image is looked at for the first chunk that holds some of it, and its rows are kept until the
last one is computed. Of one that came from the prefix cache the layout alone is found.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.eyes import Eyes, Layout, Sight
from model_server.step import ImagePart, ImageRows
from proto.contract import Image, ImageTensor

# Of rows that are kept.
MAX_GALLERY_BYTES = 256 << 20
_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "bool": torch.bool,
}


class Gallery:
    """What was seen lately, by the images' digests: an image that comes again is not looked at.

    Two threads may ask at the same time: that of steps, and one that looks ahead of them.

    eyes: of the model
    """

    def __init__(self, eyes: Eyes) -> None:
        self._eyes = eyes
        self._num_bytes = 0
        self._sights: OrderedDict[bytes, Sight] = OrderedDict()
        self._lock = Lock()

    def sight(self, image: Image, span_ids: Sequence[int]) -> Sight:
        """Raises ImageRefused, torch.OutOfMemoryError or MemoryError."""
        sight = self._seen(image.digest)
        if sight is None:
            sight = self._eyes.look(torch.tensor(span_ids), tensors_of(image))
            self.keep(image.digest, sight)
        return sight

    def layout(self, image: Image, span_ids: Sequence[int]) -> Layout:
        """Raises ImageRefused."""
        return self._eyes.layout(torch.tensor(span_ids), tensors_of(image))

    def _seen(self, digest: bytes) -> Sight | None:
        with self._lock:
            sight = self._sights.get(digest)
            if sight is not None:
                self._sights.move_to_end(digest)
            return sight

    def keep(self, digest: bytes, sight: Sight) -> None:
        """What was seen of an image."""
        with self._lock:
            if digest not in self._sights:
                self._num_bytes += sight.rows.nbytes
            self._sights[digest] = sight
            while self._num_bytes > MAX_GALLERY_BYTES:
                _, oldest = self._sights.popitem(last=False)
                self._num_bytes -= oldest.rows.nbytes


def tensors_of(image: Image) -> dict[str, Tensor]:
    """What came with it, on the host."""
    return {name: _tensor(each) for name, each in image.tensors.items()}


def _tensor(tensor: ImageTensor) -> Tensor:
    # torch shares the memory, and warns of what must not be written.
    memory = bytearray(tensor.data)
    if not memory:
        return torch.empty(tensor.shape, dtype=_DTYPES[tensor.dtype])
    return torch.frombuffer(memory, dtype=_DTYPES[tensor.dtype]).reshape(tensor.shape)


class SequenceImages:
    """Of one sequence, whose prompt they are part of.

    is_turned: whether an image's tokens have three rotary positions
    """

    def __init__(self, images: Sequence[Image], prompt_ids: Sequence[int], is_turned: bool) -> None:
        self._images = tuple(images)
        self._spans = [list(prompt_ids[image.start : image.stop]) for image in images]
        self._is_turned = is_turned
        self._sights: dict[int, Sight] = {}
        self._layouts: dict[int, Layout] = {}

    def has_unseen(self, start: int, stop: int) -> bool:
        """Whether `see` has something to do for tokens [start, stop)."""
        return any(True for _ in self._unseen(start, stop))

    def see(self, start: int, stop: int, gallery: Gallery) -> None:
        """Look at what tokens [start, stop) hold of images, and find where they stand.

        Raises ImageRefused, torch.OutOfMemoryError or MemoryError.
        """
        for index in list(self._unseen(start, stop)):
            image = self._images[index]
            if image.stop > start:
                self._sights[index] = gallery.sight(image, self._spans[index])
                self._layouts[index] = self._sights[index].layout
            else:
                self._layouts[index] = gallery.layout(image, self._spans[index])

    def _unseen(self, start: int, stop: int) -> Iterator[int]:
        for index, image in enumerate(self._images):
            if image.start < stop and (
                index not in self._sights
                if image.stop > start
                else self._is_turned and index not in self._layouts
            ):
                yield index

    def forget(self, computed_len: int) -> None:
        """Rows that no later step needs; the last token may be computed again."""
        for index in [each for each in self._sights if self._images[each].stop < computed_len]:
            del self._sights[index]

    def part(self, start: int, stop: int) -> ImagePart | None:
        """Of tokens [start, stop), which were seen; None: nothing. Raises as `key_ends`."""
        part = ImagePart(
            self.turns(start, stop), self.rows(start, stop), self.key_ends(start, stop)
        )
        return part if any(each is not None for each in part) else None

    def turns(self, start: int, stop: int) -> npt.NDArray[np.int64] | None:
        """[3, stop - start] rotary positions of tokens that were seen; None: each has its index."""
        if not self._is_turned:
            return None
        turns = np.repeat(np.arange(start, stop)[None], 3, axis=0)
        shift = 0
        for index, image in enumerate(self._images):
            layout = self._layouts.get(index)
            if image.start >= stop or layout is None:
                break
            first, last = max(image.start, start), min(image.stop, stop)
            if first < last and layout.turns is not None:
                inner = layout.turns[:, first - image.start : last - image.start].numpy()
                turns[:, first - start : last - start] = inner + (image.start + shift)
            shift += layout.reach - image.span_len
            turns[:, max(image.stop - start, 0) :] = np.arange(max(image.stop, start), stop) + shift
        return turns

    def key_ends(self, start: int, stop: int) -> npt.NDArray[np.int64] | None:
        """Up to which position each of tokens [start, stop) attends; None: to its own.

        Raises InvalidStep where an image whose tokens attend to each other does not end by `stop`.
        """
        ends = np.arange(start, stop) + 1
        for index, sight in self._sights.items():
            image = self._images[index]
            first, last = max(image.start, start), min(image.stop, stop)
            if sight.key_ends is None or first >= last:
                continue
            own = sight.key_ends[first - image.start : last - image.start].numpy() + image.start
            if own.max() > stop:
                raise InvalidStep(f"a chunk ends at {stop}, within an image that sees ahead")
            ends[first - start : last - start] = own
        return ends if (ends > np.arange(start, stop) + 1).any() else None

    def rows(self, start: int, stop: int) -> ImageRows | None:
        """What stands for tokens [start, stop); None: all of them are of text."""
        places = []
        rows = []
        for index, sight in self._sights.items():
            own = sight.places + (self._images[index].start - start)
            is_within = (own >= 0) & (own < stop - start)
            if is_within.any():
                places.append(own[is_within])
                rows.append(sight.rows[:, is_within])
        return ImageRows(torch.cat(places), torch.cat(rows, 1)) if places else None
