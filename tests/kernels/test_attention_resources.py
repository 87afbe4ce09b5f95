"""What the kernels of attention use of a GPU."""

import pytest

from tests.kernels.ahead_of_time import SHARED_LIMITS, compiled


@pytest.mark.slow
def test_no_kernel_of_attention_spills_registers() -> None:
    spills = {
        (each.kernel, each.label, each.architecture): each.local_bytes
        for each in compiled("attention")
        if each.local_bytes
    }
    assert spills == {}


@pytest.mark.slow
def test_tiles_are_multiplied_by_matrix_instructions_and_loaded_16_bytes_at_a_time() -> None:
    found = [each for each in compiled("attention") if each.kernel != "merge_splits"]
    assert len(found) == 2 * (3 * 2 + 3)
    assert all(each.num_matrix_ops > 0 for each in found)
    assert all(each.num_wide_loads > 0 for each in found)
    assert all(
        each.num_wgmma > 0 for each in found if each.kernel == "prefill" and each.architecture == 90
    )


@pytest.mark.slow
def test_shared_memory_is_within_the_limit() -> None:
    assert all(
        each.shared_bytes < SHARED_LIMITS[each.architecture] for each in compiled("attention")
    )
