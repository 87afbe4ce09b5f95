"""Rows in a served model's pool are told apart, whatever their steps."""

from pathlib import Path

import pytest
import torch

from model_server.checkpoint.check import ModelSettings
from model_server.engine.distributed import World
from model_server.loading import load_model
from model_server.quantizing.rows import Rows
from tests.model_server.checkpoint import tiny_models


# The second keeps a state of each row.
@pytest.mark.parametrize("name", ["llama", "qwen3_5"])
def test_in_steps_beside_others_a_row_has_the_logits_that_it_has_alone(
    name: str, tmp_path: Path
) -> None:
    settings = ModelSettings(tiny_models.save(name, tmp_path), torch.device("cpu"), dtype="float32")
    model = load_model(settings, World())
    assert model.fallback_reason is None
    tokens = (torch.arange(60).reshape(2, 30) * 7 % 150).tolist()
    alone = torch.cat([Rows(model, 1, 30).step([row]).clone() for row in tokens]).unflatten(
        0, (2, 30)
    )
    together = Rows(model, 2, 30)
    parts = []
    for first, end in ((0, 17), (17, 18), (18, 19), (19, 30)):
        logits = together.step([row[first:end] for row in tokens]).clone()
        parts.append(logits.unflatten(0, (2, end - first)))
    torch.testing.assert_close(torch.cat(parts, 1), alone, rtol=1e-5, atol=1e-5)
