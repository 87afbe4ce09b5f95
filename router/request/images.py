"""Images of a prompt: the files that came."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An encoded file, of a format that pillow finds out: png, jpeg, gif, webp or tiff."""

    data: bytes = field(repr=False)
