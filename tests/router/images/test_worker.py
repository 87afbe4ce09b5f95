"""What workers send of the tensors that a processor makes."""

import numpy as np
import torch

from router.images import worker


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
