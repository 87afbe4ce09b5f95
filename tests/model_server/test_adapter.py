"""A LoRA adapter is read as peft reads it; whatever does more than that is refused by name."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig

from model_server.adapter import CONFIG_NAME, WEIGHTS_NAME, Adapter, LinearShapes
from model_server.errors import AdapterRefused
from tests.model_server import lora_folders
from tests.model_server.lora_folders import key

Q = "model.layers.0.self_attn.q_proj"
V = "model.layers.0.self_attn.v_proj"
SHAPES: LinearShapes = {Q: (24, 16), V: (8, 16)}


def test_a_layer_has_its_matrices_and_the_scale_that_its_config_gives(tmp_path: Path) -> None:
    ones = {key(Q, "B"): torch.ones(24, 4), key(V, "B"): torch.ones(8, 4)}
    for name, config, scales in (
        ("plain", {"lora_alpha": 6}, (1.5, 1.5)),
        ("rslora", {"lora_alpha": 6, "use_rslora": True}, (3.0, 3.0)),
        ("alphas", {"lora_alpha": 6, "alpha_pattern": {"v_proj": 10}}, (1.5, 2.5)),
        ("layers", {"lora_alpha": 6, "alpha_pattern": {r"layers\.0\..*": 2}}, (0.5, 0.5)),
        ("inner", {"lora_alpha": 6, "alpha_pattern": {"self_attn": 2}}, (1.5, 1.5)),
    ):
        folder = lora_folders.save(tmp_path / name, SHAPES, changes=ones, **config)
        adapter = Adapter.read(folder, SHAPES, max_rank=4)
        assert adapter.layers[Q].b.unique().tolist() == [scales[0]], name
        assert adapter.layers[V].b.unique().tolist() == [scales[1]], name
        assert adapter.layers[V].a.shape == (4, 16)


def test_ranks_may_differ_as_the_pattern_says(tmp_path: Path) -> None:
    wide = {key(Q, "A"): torch.ones(6, 16), key(Q, "B"): torch.ones(24, 6)}
    folder = lora_folders.save(tmp_path / "a", SHAPES, changes=wide, rank_pattern={"q_proj": 6})
    adapter = Adapter.read(folder, SHAPES, max_rank=6)
    assert (adapter.layers[Q].rank, adapter.layers[V].rank, adapter.rank) == (6, 4, 6)
    assert adapter.layers[Q].b[0, 0] == pytest.approx(4 / 6)


def test_layers_of_the_class_for_text_alone_are_those_of_the_class_that_also_sees(
    tmp_path: Path,
) -> None:
    seeing = {
        name.replace("model.", "model.language_model."): shape for name, shape in SHAPES.items()
    }
    folder = lora_folders.save(tmp_path / "a", SHAPES)
    assert Adapter.read(folder, seeing, max_rank=4).layers.keys() == seeing.keys()


def test_what_peft_writes_of_a_plain_adapter_is_known(tmp_path: Path) -> None:
    folder = lora_folders.save(tmp_path / "a", SHAPES)
    made = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules=["q_proj"])
    made.save_pretrained(str(folder))
    assert Adapter.read(folder, SHAPES, max_rank=4).layers.keys() == SHAPES.keys()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', which is not served"),
        ({"bias": "lora_only"}, "bias is 'lora_only', which is not served"),
        ({"use_dora": True}, "use_dora is True, which is not served"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is ['lm_head'], which is not served"),
        ({"trainable_token_indices": [3]}, "trainable_token_indices is [3], which is not served"),
        ({"target_parameters": ["x.w"]}, "target_parameters is ['x.w'], which is not served"),
        ({"layer_replication": [[0, 4]]}, "layer_replication is [[0, 4]], which is not served"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which is not served"),
        ({"lora_bias": True}, "lora_bias is True, which is not served"),
        ({"use_qalora": True}, "use_qalora is True, which is not served"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is [1], which is not served"),
        ({"use_next_thing": 1}, "use_next_thing is 1, which is not known here"),
        ({"r": 0}, "its ranks and scales cannot be read: ValueError('a rank is below 1')"),
        ({"lora_alpha": "much"}, "its ranks and scales cannot be read"),
        ({"r": float("inf")}, "its ranks and scales cannot be read"),
        ({"rank_pattern": ["q_proj"]}, "its ranks and scales cannot be read"),
        ({"lora_alpha": float("nan")}, f"{Q}.lora_B times its scale of nan holds other than"),
        ({"lora_alpha": 1e300}, f"{Q}.lora_B times its scale of 2.5e+299 holds other than"),
        ({"alpha_pattern": {"(": 1}}, "its ranks and scales cannot be read"),
        ({"r": 5}, f"{Q}.lora_A has the shape [4, 16], and by adapter_config.json and the model"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_config_that_says_more_is_refused(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    folder = lora_folders.save(tmp_path / "a", SHAPES, **config)
    with pytest.raises(AdapterRefused, match=re.escape(said)):
        Adapter.read(folder, SHAPES, max_rank=16)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({key(Q, "B"): None}, f"{Q} has no lora_B"),
        ({key(Q, "A"): None}, f"{Q} has no lora_A"),
        ({key("lm_head", "A"): torch.ones(4, 16)}, "it changes lm_head, which is not served with"),
        (
            {f"base_model.model.{Q}.lora_magnitude_vector": torch.ones(24)},
            "lora_magnitude_vector is no lora_A or lora_B of a linear layer",
        ),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 16)},
            "embed_tokens.lora_embedding_A is no lora_A or lora_B of a linear layer",
        ),
        ({key(Q, "B"): torch.ones(25, 4)}, f"{Q}.lora_B has the shape [25, 4]"),
        ({key(Q, "A"): torch.ones(4, 17)}, f"{Q}.lora_A has the shape [4, 17]"),
        ({key(V, "A"): torch.full((4, 16), torch.nan)}, f"{V}.lora_A holds other than finite"),
        ({key(V, "A"): torch.ones(4, 16, dtype=torch.int8)}, f"{V}.lora_A holds other than"),
        (
            {key(V, "A"): torch.ones(4, 16).to(torch.float8_e4m3fn)},
            f"{V}.lora_A holds other than finite numbers of 16 bits and more",
        ),
        (
            {key(V, "A"): torch.full((4, 16), 1e300, dtype=torch.float64)},
            f"{V}.lora_A holds other than",
        ),
        ({key(name, which): None for name in SHAPES for which in "AB"}, "it holds no tensors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = lora_folders.save(tmp_path / "a", SHAPES, changes=changes)
    with pytest.raises(AdapterRefused, match=re.escape(said)):
        Adapter.read(folder, SHAPES, max_rank=16)


def test_a_rank_above_the_largest_is_refused(tmp_path: Path) -> None:
    folder = lora_folders.save(tmp_path / "a", SHAPES, rank=9)
    with pytest.raises(AdapterRefused, match=f"{Q} has rank 9, and --max-lora-rank is 8"):
        Adapter.read(folder, SHAPES, max_rank=8)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterRefused, match=r"nowhere/adapter_config\.json: cannot be read"):
        Adapter.read(tmp_path / "nowhere", SHAPES, max_rank=8)
    folder = lora_folders.save(tmp_path / "a", SHAPES)
    (folder / WEIGHTS_NAME).unlink()
    with pytest.raises(AdapterRefused, match=r"adapter_model\.safetensors: cannot be read"):
        Adapter.read(folder, SHAPES, max_rank=8)
    os.mkfifo(folder / WEIGHTS_NAME)
    with pytest.raises(AdapterRefused, match=r"adapter_model\.safetensors: it is no file"):
        Adapter.read(folder, SHAPES, max_rank=8)
    (folder / CONFIG_NAME).write_text("[" * 100_000)
    with pytest.raises(AdapterRefused, match=r"adapter_config\.json: cannot be read: maximum rec"):
        Adapter.read(folder, SHAPES, max_rank=8)
    (folder / CONFIG_NAME).write_text(json.dumps([1]))
    with pytest.raises(AdapterRefused, match="it holds no object"):
        Adapter.read(folder, SHAPES, max_rank=8)
