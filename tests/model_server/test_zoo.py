"""Of a model that also sees, the language model alone is built and loaded, and it is all of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_server import zoo
from model_server.zoo import HfModel
from tests.model_server.checkpoint import tiny_models

CPU = torch.device("cpu")
PARTS = {
    "llava": ("model.vision_tower", "model.multi_modal_projector"),
    "qwen3_vl": ("model.visual",),
    "smolvlm": ("model.vision_model", "model.connector"),
}


def load(folder: Path, config: Any, left_out: tuple[str, ...]) -> HfModel:
    return zoo.load(
        folder,
        config,
        dtype=torch.float32,
        device=CPU,
        trust_remote_code=False,
        num_shards=1,
        left_out=left_out,
    )


@pytest.mark.parametrize("name", PARTS)
def test_what_text_never_passes_is_neither_built_nor_loaded(name: str, tmp_path: Path) -> None:
    whole = tiny_models.build(name)
    whole.save_pretrained(tmp_path)
    config = zoo.read_config(tmp_path, trust_remote_code=False)
    empty = zoo.build_empty(config, trust_remote_code=False)
    assert empty.left_out == PARTS[name]
    loaded = load(tmp_path, config, empty.left_out)
    expected = {
        key: value
        for key, value in whole.state_dict().items()
        if not key.startswith(tuple(f"{part}." for part in PARTS[name]))
    }
    actual = loaded.module.state_dict()
    assert actual.keys() == expected.keys()
    assert all(torch.equal(actual[key], expected[key]) for key in expected)
    num_parameters = sum(value.numel() for value in expected.values())
    assert empty.num_parameters() == loaded.num_parameters() == num_parameters
    assert num_parameters < sum(parameter.numel() for parameter in whole.parameters())


def test_a_small_model_is_small_whatever_its_tower() -> None:
    config = transformers.LlavaConfig(
        text_config=tiny_models.CONFIGS["llama"]().to_dict(),
        # Some terabytes.
        vision_config={"model_type": "clip_vision_model", "hidden_size": 3 << 14},
    )
    model = zoo.build_small(config, trust_remote_code=False)
    assert model.num_parameters() < 1_000_000
    token_ids = torch.arange(3, 9)
    again = zoo.build_small(config, trust_remote_code=False)
    with torch.inference_mode():
        logits = model.native_logits(token_ids)
        assert torch.equal(again.native_logits(token_ids), logits)
    assert float(logits.std()) > 0


def test_a_model_that_cannot_be_tried_without_data_is_loaded_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tiny_models.save("llava", tmp_path)
    config = zoo.read_config(folder, trust_remote_code=False)
    forward = transformers.LlavaModel.forward

    def looking(self: Any, input_ids: Any = None, **options: Any) -> Any:
        assert int(input_ids.max()) < 1000
        return forward(self, input_ids=input_ids, **options)

    monkeypatch.setattr(transformers.LlavaModel, "forward", looking)
    empty = zoo.build_empty(config, trust_remote_code=False)
    assert empty.left_out == ()
    loaded = load(folder, config, empty.left_out)
    assert "model.vision_tower" in dict(loaded.module.named_modules())
    with torch.inference_mode():
        assert loaded.native_logits(torch.arange(3, 9)).shape == (6, tiny_models.VOCAB_SIZE)


@pytest.mark.parametrize(
    ("kind", "takes_more"),
    [("Llama", False), ("Dbrx", False), ("Mpt", False), ("Gemma3", True), ("Qwen3_5", True)],
)
def test_a_config_tells_whether_there_is_more_than_text(kind: str, takes_more: bool) -> None:
    config = getattr(transformers, f"{kind}Config")()
    assert zoo.takes_more_than_text(config) is takes_more


def test_names_in_a_checkpoint_are_found_by_those_of_the_class(tmp_path: Path) -> None:
    model = tiny_models.build("llava")
    names = zoo.stored_names(model, ["language_model.model.norm.weight", "other"])
    ours = "model.language_model.norm.weight"
    assert ours in model.state_dict()
    assert names == {ours: "language_model.model.norm.weight", "other": "other"}
