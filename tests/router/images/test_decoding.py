"""Files of images: what is decoded, how it comes, and what is refused before it costs anything."""

import time

import pytest
from PIL import Image

from router.images.decoding import BadImage, decode
from tests.router.images.hostile import FILES, MAX_PIXELS, Size, bomb, encoded, turned


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


def test_an_image_is_turned_as_its_camera_was_held() -> None:
    lying = Image.new("RGB", (8, 6))
    lying.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 3
    shown = decode(encoded(lying, "PNG", exif=exif), MAX_PIXELS)

    assert shown.getpixel((7, 5)) == (255, 255, 255)
    assert decode(turned(), MAX_PIXELS).size == (6, 8)


@pytest.mark.parametrize(
    ("mode", "colour", "shown"),
    [
        ("L", 200, (200, 200, 200)),
        ("RGBA", (10, 20, 30, 0), (10, 20, 30)),
        ("1", 1, (255, 255, 255)),
        # Pillow's own, which transformers' is: it cuts, and does not scale.
        ("I;16", 40_000, (255, 255, 255)),
    ],
)
def test_colours_are_those_of_transformers(mode: str, colour: int, shown: Size) -> None:
    image = Image.new(mode, (2, 2), colour)

    assert decode(encoded(image, "PNG"), MAX_PIXELS).getpixel((1, 1)) == shown


@pytest.mark.alone
def test_a_bomb_is_known_by_its_head() -> None:
    data = bomb(30_000, 30_000)
    begun_s = time.monotonic()
    with pytest.raises(BadImage, match="has 30000 x 30000 pixels"):
        decode(data, 64_000_000)

    assert len(data) < 200_000
    assert time.monotonic() - begun_s < 1.0
