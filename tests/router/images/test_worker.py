"""Files of all kinds, as transformers reads them, or with the reason why not."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers.image_utils import load_image

from router.images import worker

MAX_PIXELS = 10_000


def noise(mode: str, size: tuple[int, int] = (9, 6)) -> Image.Image:
    values = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(values.view(np.uint16)[:, :, 0].copy())
    return Image.fromarray(values, "RGBA").convert("RGB").convert(mode)


def encoded(image: Image.Image, kind: str, **more: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **more)
    return file.getvalue()


def turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(noise("RGB"), "JPEG", exif=exif)


@pytest.mark.parametrize(
    "file",
    [
        *(encoded(noise(mode), "PNG") for mode in ("RGB", "RGBA", "L", "LA", "P", "1", "I;16")),
        *(encoded(noise(mode), "JPEG") for mode in ("RGB", "L", "CMYK")),
        *(encoded(noise(mode), "TIFF") for mode in ("RGB", "CMYK")),
        *(encoded(noise("RGB"), kind) for kind in ("GIF", "WEBP")),
        encoded(noise("RGB"), "GIF", save_all=True, append_images=[noise("L")]),
        encoded(noise("RGB", (1, 1)), "PNG"),
        *map(turned, range(1, 9)),
    ],
)
def test_a_file_is_read_as_transformers_reads_it(file: bytes) -> None:
    expected = load_image(Image.open(io.BytesIO(file)))
    image = worker.open_image(file, MAX_PIXELS)
    assert image.mode == "RGB"
    assert image.tobytes() == expected.tobytes()


def test_the_size_of_a_file_is_known_before_it_is_decoded() -> None:
    body = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 2, 0, 0, 0)
    header = b"IHDR" + body
    # There is nothing in it that could be decoded.
    file = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", len(body)) + header
    file += struct.pack(">I", zlib.crc32(header)) + struct.pack(">I", 0) + b"IDAT"
    with pytest.raises(Exception, match=r"has 30000 x 30000 pixels; it may have 10000"):
        worker.open_image(file + bytes(4), MAX_PIXELS)


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"", "is no image in PNG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "is no image in PNG"),
        (encoded(noise("RGB"), "BMP"), "is no image in PNG"),
        (encoded(noise("RGB", (90, 90)), "PNG")[:900], "cannot be read"),
        (encoded(noise("RGB", (90, 90)), "JPEG")[:900], "cannot be read"),
    ],
    ids=["nothing", "EPS", "BMP", "a PNG that is cut", "a JPEG that is cut"],
)
def test_what_cannot_be_read_is_refused(file: bytes, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        worker.open_image(file, MAX_PIXELS)


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    values = np.random.default_rng(1).normal(size=(50, 40)).astype(np.float32)
    values[0, :4] = [0.0, -0.0, 1.00390625, 1.01171875]  # the last two lie between two
    dtype, sent = worker.as_sent(values, "bfloat16")
    expected = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert dtype == "bfloat16"
    assert np.array_equal(sent, expected)


def test_numbers_that_are_no_floats_are_sent_as_they_are() -> None:
    grid = np.array([[1, 4, 6]])
    assert worker.as_sent(grid, "bfloat16")[0] == "int64"
    assert worker.as_sent(grid.astype(np.float32), "float32")[0] == "float32"
