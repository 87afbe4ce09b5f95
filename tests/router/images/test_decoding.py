"""Files of images: what is decoded, how it comes, and what is refused before it costs anything."""

import time
from io import BytesIO

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from router.images.decoding import BadImage, decode, of_base64
from tests.router.images.hostile import FILES, MAX_PIXELS, bomb, encoded, turned


def test_the_corpus_is_large() -> None:
    assert len(FILES) >= 40


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_decoded_or_refused_with_the_reason(name: str) -> None:
    data, expected = FILES[name]
    if isinstance(expected, str):
        with pytest.raises(BadImage, match=expected):
            decode(data, MAX_PIXELS)
        return
    image = decode(data, MAX_PIXELS)

    assert (image.mode, image.size) == ("RGB", expected)


@pytest.mark.parametrize("text", [b"abc", b"ab=c", b"a===", b"ab c", b"QQ==QQ==", b"ab*d"])
def test_what_is_no_base64_is_refused(text: bytes) -> None:
    assert of_base64(b"QUI=") == b"AB"
    with pytest.raises(BadImage, match="is no base64"):
        of_base64(text)


def test_an_image_is_turned_as_its_camera_was_held() -> None:
    lying = Image.new("RGB", (8, 6))
    lying.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 3
    shown = decode(encoded(lying, "PNG", exif=exif), MAX_PIXELS)

    assert shown.getpixel((7, 5)) == (255, 255, 255)
    assert decode(turned(), MAX_PIXELS).size == (6, 8)


def noise(mode: str, size: tuple[int, int] = (9, 6)) -> Image.Image:
    values = np.random.default_rng(3).integers(0, 256, (size[1], size[0], 4), dtype=np.uint8)
    if mode == "I;16":
        return Image.fromarray(values.view(np.uint16)[:, :, 0].copy())
    return Image.fromarray(values, "RGBA").convert("RGB").convert(mode)


def held(orientation: int) -> bytes:
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
        *map(held, range(1, 9)),
    ],
)
def test_a_file_is_read_as_transformers_reads_it(file: bytes) -> None:
    expected = load_image(Image.open(BytesIO(file)))
    image = decode(file, MAX_PIXELS)
    assert image.mode == "RGB"
    assert image.tobytes() == expected.tobytes()


@pytest.mark.alone
def test_a_bomb_is_known_by_its_head() -> None:
    data = bomb(30_000, 30_000)
    begun_s = time.monotonic()
    with pytest.raises(BadImage, match="has 30000 x 30000 pixels"):
        decode(data, 64_000_000)

    assert len(data) < 200_000
    assert time.monotonic() - begun_s < 1.0
