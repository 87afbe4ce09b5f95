"""An image's file as processors take it: in RGB, upright, its first frame.

Whoever sent the file may have made it to hurt: it is decoded in a process with limits of memory and
time, and of it nothing is decoded before its size is known.
"""

import binascii
import warnings
from io import BytesIO

from PIL import Image, ImageOps, UnidentifiedImageError

# Others are old or rare, and one of them starts a program.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF")
# The size is checked here, where it is known whose limit it is.
Image.MAX_IMAGE_PIXELS = None


class BadImage(Exception):
    """A file that cannot be an image of a prompt; the text follows its name."""


def of_base64(text: bytes | bytearray) -> bytes:
    """Raises BadImage."""
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error:
        raise BadImage("is no base64") from None


def decode(data: bytes | bytearray, max_pixels: int) -> Image.Image:
    """As transformers' own `load_image` has it. Raises BadImage, MemoryError."""
    try:
        # What a decoder finds odd and reads all the same concerns nobody.
        with warnings.catch_warnings(action="ignore"):
            opened = Image.open(BytesIO(data), formats=FORMATS)
            width, height = opened.size
            if width * height > max_pixels:
                raise BadImage(
                    f"has {width} x {height} pixels; it may have {max_pixels} (--max-image-pixels)"
                )
            return ImageOps.exif_transpose(opened).convert("RGB")
    except UnidentifiedImageError:
        raise BadImage("is no image in PNG, JPEG, GIF, WebP or TIFF") from None
    except (BadImage, MemoryError):
        raise
    # A decoder meets whatever somebody wrote.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise BadImage(f"is an image that cannot be read: {reason}") from error
