"""What the kernels of a layer's operations use of a GPU."""

import pytest

from tests.kernels.ahead_of_time import compiled


@pytest.mark.slow
def test_no_operation_spills_registers_and_all_load_16_bytes_at_a_time() -> None:
    found = compiled("layer")
    assert len(found) == 3 * (3 + 2) + 3
    assert {(each.kernel, each.label): each.local_bytes for each in found if each.local_bytes} == {}
    assert all(each.num_wide_loads > 0 for each in found if each.kernel != "rotate_and_write")


@pytest.mark.slow
def test_rows_are_rounded_to_8_bits_without_spilling() -> None:
    found = compiled("quantize", (90, 100))
    assert [each.local_bytes for each in found] == [0, 0]
    assert all(each.num_wide_loads > 0 for each in found)
