"""Images of a prompt: what a processor made of their files, and where they lie.

    text:    "see <image> and <image>"          a marker for each, which the chat template writes
    prompt:  | see | span of image 0 | and | span of image 1 |

A span is everything that the processor makes of a marker and its image: rows and tiles have break
tokens of their own. By an image's digest, not by the ids of its span, KV is shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proto.contract import Image, ImageTensor


class ImageRefused(Exception):
    """An image that cannot be had; the text follows the name of its field."""


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """What stands for an image in a prompt; `digest` and `tensors` as in the contract."""

    digest: bytes
    span_ids: tuple[int, ...]
    tensors: Mapping[str, ImageTensor] = field(repr=False)


def splice(
    token_ids: Sequence[int], marker_id: int, prepared: Sequence[PreparedImage]
) -> tuple[tuple[int, ...], tuple[Image, ...]]:
    """A prompt with the spans of images in place of its markers. There must be as many of both."""
    spliced: list[int] = []
    images: list[Image] = []
    left = iter(prepared)
    for token_id in token_ids:
        if token_id == marker_id:
            one = next(left)
            images.append(Image(one.digest, len(spliced), len(one.span_ids), one.tensors))
            spliced += one.span_ids
        else:
            spliced.append(token_id)
    return tuple(spliced), tuple(images)


def prompt_keys(prompt_ids: tuple[int, ...], images: Sequence[Image]) -> tuple[int, ...]:
    """By what a prompt's KV is found: ids, and in the place of an image what it shows."""
    for image in images:
        key = int.from_bytes(image.digest)
        prompt_ids = prompt_ids[: image.start] + (key,) * image.span_len + prompt_ids[image.stop :]
    return prompt_ids
