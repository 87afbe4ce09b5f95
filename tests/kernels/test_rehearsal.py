"""The rehearsal of the sampler, as warm-up does it on CUDA."""

from typing import Any

import torch

from model_server.sampling.sampler import Sampler, rehearse
from model_server.sampling.triton import TritonChooser, TritonEdits
from model_server.triton_launch import launch

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def test_a_rehearsal_launches_every_kernel_and_leaves_nothing() -> None:
    launched = set()

    def noted(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        launched.add(kernel.fn.__name__)
        launch(kernel, grid, *arguments, **constants)

    edits = TritonEdits(300, DEVICE, 2, launch=noted)
    sampler = Sampler(
        300, DEVICE, (0,), 2, choose=TritonChooser(DEVICE, 2, launch=noted), edits=edits
    )
    rehearse(sampler, 300, DEVICE, num_rows=4)
    assert launched == {
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
    }
    # Requests of the same ids are taken again.
    rehearse(sampler, 300, DEVICE, num_rows=4)
