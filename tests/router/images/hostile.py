"""Files of images that are odd, broken, or made to hurt, each with what becomes of it.

Size: that of the image in RGB. Text: a part of the reason why it is refused.
"""

import struct
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any

from PIL import Image

MAX_PIXELS = 1_000_000
Size = tuple[int, int]


def png(width: int, height: int, rows: bytes, kind: int = 2, depth: int = 8) -> bytes:
    """A PNG of compressed rows; `kind` is its colour type."""
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", rows) + _chunk(b"IEND")


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(width: int, height: int) -> bytes:
    """Few bytes that are many pixels, all black, one bit each."""
    packer = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    rows = b"".join(packer.compress(row * 100) for _ in range(height // 100))
    return png(width, height, rows + packer.flush(), kind=0, depth=1)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plain(mode: str = "RGB", size: Size = (8, 6)) -> Image.Image:
    """Of every mode's own black and white."""
    return Image.new("L", size, 200).convert(mode)


def turned() -> bytes:
    """A photo that says that it lies on its side."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encoded(plain(), "JPEG", exif=exif)


def animated(kind: str) -> bytes:
    frames = [Image.new("RGB", (8, 6), (shade, 0, 0)) for shade in (0, 100, 200)]
    return encoded(frames[0], kind, save_all=True, append_images=frames[1:])


_PNG = encoded(plain(size=(64, 64)), "PNG")
_JPEG = encoded(plain(size=(64, 64)), "JPEG")
_NONE = "is no image in PNG|cannot be read"
_LARGE = "pixels; it may have"

FILES: Mapping[str, tuple[bytes, Size | str]] = {
    "png": (encoded(plain(), "PNG"), (8, 6)),
    "jpeg": (encoded(plain(), "JPEG"), (8, 6)),
    "gif": (encoded(plain(), "GIF"), (8, 6)),
    "webp": (encoded(plain(), "WEBP"), (8, 6)),
    "tiff": (encoded(plain(), "TIFF"), (8, 6)),
    "one pixel": (encoded(plain(size=(1, 1)), "PNG"), (1, 1)),
    "one row": (encoded(plain(size=(500, 1)), "PNG"), (500, 1)),
    "one column": (encoded(plain(size=(1, 500)), "PNG"), (1, 500)),
    "gray": (encoded(plain("L"), "PNG"), (8, 6)),
    "one bit": (encoded(plain("1"), "PNG"), (8, 6)),
    "palette": (encoded(plain("P"), "PNG"), (8, 6)),
    "palette with a hole": (encoded(plain("P"), "PNG", transparency=0), (8, 6)),
    "alpha": (encoded(plain("RGBA"), "PNG"), (8, 6)),
    "gray with alpha": (encoded(plain("LA"), "PNG"), (8, 6)),
    "16 bit": (encoded(Image.new("I;16", (8, 6), 40_000), "PNG"), (8, 6)),
    "cmyk": (encoded(plain("CMYK"), "JPEG"), (8, 6)),
    "floats": (encoded(plain("F"), "TIFF"), (8, 6)),
    "progressive": (encoded(plain(), "JPEG", progressive=True), (8, 6)),
    "lies on its side": (turned(), (6, 8)),
    "animated gif": (animated("GIF"), (8, 6)),
    "animated png": (animated("PNG"), (8, 6)),
    "animated webp": (animated("WEBP"), (8, 6)),
    "pages": (animated("TIFF"), (8, 6)),
    "a tail behind the end": (_PNG + b"<script>alert(1)</script>", (64, 64)),
    "nothing": (b"", _NONE),
    "a text": (b"not an image", _NONE),
    "svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', _NONE),
    "svg with an entity": (
        b'<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><svg>&b;</svg>',
        _NONE,
    ),
    "postscript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 6\nshowpage\n", _NONE),
    "bmp": (encoded(plain(), "BMP"), _NONE),
    "ico": (encoded(plain(size=(16, 16)), "ICO"), _NONE),
    "pdf": (b"%PDF-1.4\n1 0 obj<<>>endobj\ntrailer<<>>\n%%EOF", _NONE),
    "zip": (b"PK\x03\x04" + bytes(100), _NONE),
    "truncated png": (_PNG[: len(_PNG) // 2], _NONE),
    "truncated jpeg": (_JPEG[: len(_JPEG) - 40], _NONE),
    "a head alone": (_JPEG[:20], _NONE),
    "a wrong checksum": (_PNG[:40] + b"\0" + _PNG[41:], _NONE),
    "rows that are too few": (png(64, 64, zlib.compress(bytes(100))), _NONE),
    "rows that are no zlib": (png(8, 6, b"garbage"), _NONE),
    "no size": (png(0, 0, zlib.compress(b"")), _NONE),
    "a bomb": (bomb(30_000, 30_000), _LARGE),
    "a size of 31 bits": (png(2**31 - 1, 2**31 - 1, zlib.compress(b"")), _LARGE),
    "a wide line": (png(2**31 - 1, 1, zlib.compress(b"")), _LARGE),
    "just too large": (encoded(plain("1", (1001, 1000)), "PNG"), _LARGE),
    "just not too large": (encoded(plain("1", (1000, 1000)), "PNG"), (1000, 1000)),
    "a gif of many pixels": (
        b"GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\xff\xff\xff\xff\0\2\0;",
        _LARGE,
    ),
}
