"""What the sampler's kernels use of a GPU."""

import pytest

from tests.kernels.ahead_of_time import compiled


@pytest.mark.slow
def test_no_kernel_of_the_sampler_spills_registers() -> None:
    found = compiled("sample", counts_instructions=False)
    assert {(each.kernel, each.architecture): each.local_bytes for each in found} == {
        (kernel, architecture): 0
        for kernel in (
            "mask_scores",
            "add_biases",
            "penalise_used",
            "count_output",
            "chunk_bests",
            "take_best",
            "chunk_tops",
            "chunk_masses",
            "draw_from_all",
            "gather_candidates",
            "draw_filtered",
        )
        for architecture in (80, 90, 100)
    }
