"""Markers become spans, and a prompt is known by what its images show."""

from router.request.images import PreparedImage, prompt_keys, splice
from tests.strategies import make_image

ONE = PreparedImage(b"1" * 16, (8, 9, 9, 8), {})
TWO = PreparedImage(b"2" * 16, (9,), {})


def test_each_marker_becomes_the_span_of_its_image() -> None:
    prompt_ids, images = splice([5, 7, 6, 7, 7], 7, [ONE, TWO, ONE])
    assert prompt_ids == (5, 8, 9, 9, 8, 6, 9, 8, 9, 9, 8)
    assert [(image.digest[:1], image.start, image.stop) for image in images] == [
        (b"1", 1, 5),
        (b"2", 6, 7),
        (b"1", 7, 11),
    ]


def test_a_marker_within_a_span_is_no_marker() -> None:
    marked = PreparedImage(bytes(16), (7, 7), {})
    prompt_ids, images = splice([7, 1, 7], 7, [marked, ONE])
    assert prompt_ids == (7, 7, 1, 8, 9, 9, 8)
    assert [image.start for image in images] == [0, 3]


def test_a_prompt_is_known_by_the_digests_of_its_images() -> None:
    image = make_image(1, 2, shown=3)
    key = int.from_bytes(image.digest)
    assert prompt_keys((5, 9, 9, 6), [image]) == (5, key, key, 6)
    assert key > 1 << 120
