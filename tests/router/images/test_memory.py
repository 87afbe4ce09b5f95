"""What images may take together: what is held is counted, what is kept gives way."""

import pytest

from processes.instruments import Gauge
from router.images.memory import Held, ImageMemory
from router.request.errors import Overloaded


class Tensors:
    """Kept, and so held."""

    def __init__(self, memory: ImageMemory, num_bytes: int) -> None:
        self.held = Held(memory, num_bytes)


def test_what_grows_beyond_is_refused_and_given_back_once_nobody_has_it() -> None:
    gauge = Gauge("bytes", "of images")
    memory = ImageMemory(100, gauge)
    held = Held(memory)
    held.grow(60)
    other = Held(memory, 30)
    with pytest.raises(Overloaded, match="--image-memory") as refused:
        held.grow(11)
    assert refused.value.retry_after_s > 0
    assert gauge.value() == 90
    del other
    held.grow(40)
    assert gauge.value() == 100
    del held, refused
    assert gauge.value() == 0


def test_what_is_kept_goes_first_and_the_least_used_before_the_others() -> None:
    memory = ImageMemory(100, Gauge("bytes", "of images"))
    for name in b"abc":
        memory.keep(bytes([name]), Tensors(memory, 30))
    memory.keep(b"a", Tensors(memory, 0))
    assert memory.num_bytes == 60
    held = Held(memory)
    held.grow(50)
    assert memory.num_bytes == 80
    held.grow(50)
    assert memory.num_bytes == 100
