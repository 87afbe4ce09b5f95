"""A model whose layers run one at a time computes what it computes as a whole."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from model_server import zoo
from model_server.errors import ModelRefused
from model_server.quantizing.decoder import Decoder
from model_server.zoo import HfModel
from tests.model_server.checkpoint import tiny_models

ROWS = [torch.arange(start, start + 24) % 150 for start in (3, 40)]


def load(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> HfModel:
    tiny_models.save(name, folder)
    config = zoo.read_config(folder, trust_remote_code=False)
    left_out = zoo.build_empty(config, trust_remote_code=False).left_out
    return zoo.load(
        folder,
        config,
        dtype=dtype,
        device=torch.device("cpu"),
        trust_remote_code=False,
        num_shards=1,
        left_out=left_out,
    )


# Windows by layer, scaled embeddings and capped logits, a layer's own rope, states, layers that
# give more than their rows, and what sees.
@pytest.mark.parametrize(
    "name", ["llama-tied", "qwen2", "gemma2", "gemma3", "qwen3_5", "bamba", "llava"]
)
def test_layer_by_layer_the_logits_are_those_of_the_whole(name: str, tmp_path: Path) -> None:
    model = load(name, tmp_path)
    with torch.inference_mode():
        expected = [model.native_logits(row) for row in ROWS]
    decoder = Decoder(model, ROWS[0])
    rows = [decoder.embedded(row) for row in ROWS]
    for index in range(len(decoder)):
        decoder.widen(index)
        rows = [decoder.run(index, row) for row in rows]
        decoder.forget(index)
    for row, hidden, logits in zip(ROWS, rows, expected, strict=True):
        torch.testing.assert_close(decoder.logits(row, hidden), logits, rtol=0, atol=1e-5)


def test_only_the_layer_that_runs_is_wide(tmp_path: Path) -> None:
    decoder = Decoder(load("llama", tmp_path, torch.bfloat16), ROWS[0])

    def dtypes() -> list[str]:
        return [
            str(linear.weight.dtype if linear.weight.device.type == "cpu" else "gone")
            for index in range(len(decoder))
            for name, linear in decoder.linears(index).items()
            if name.endswith("o_proj")
        ]

    assert dtypes() == ["torch.bfloat16", "torch.bfloat16"]
    decoder.widen(0)
    assert dtypes() == ["torch.float32", "torch.bfloat16"]
    decoder.forget(0)
    assert dtypes() == ["gone", "torch.bfloat16"]


def test_layers_that_have_not_run_are_the_pages_of_the_file(tmp_path: Path) -> None:
    decoder = Decoder(load("llama", tmp_path, torch.float32), ROWS[0])
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split()[0].split("-") for line in lines if str(tmp_path) in line]

    def is_mapped(index: int) -> bool:
        (weight,) = (
            linear.weight for name, linear in decoder.linears(index).items() if "down" in name
        )
        return any(int(first, 16) <= weight.data_ptr() < int(end, 16) for first, end in spans)

    assert is_mapped(1)


def test_linear_layers_go_by_their_names(tmp_path: Path) -> None:
    decoder = Decoder(load("llama", tmp_path), ROWS[0])
    names = list(decoder.linears(1))
    assert "model.layers.1.self_attn.q_proj" in names
    assert len(names) == 7


def test_products_are_of_what_each_layer_reads_and_shared_where_it_is_the_same(
    tmp_path: Path,
) -> None:
    model = load("llama", tmp_path)
    read: dict[str, list[Tensor]] = {}

    def see(name: str) -> None:
        part: nn.Module = model.module.get_submodule(name)
        part.register_forward_pre_hook(
            lambda _, arguments: read.setdefault(name, []).append(arguments[0][0].double())
        )

    decoder = Decoder(model, ROWS[0])
    linears = decoder.linears(0)
    for name in linears:
        see(name)
    with torch.inference_mode():
        for row in ROWS:
            model.native_logits(row)
    expected = {name: torch.cat(parts) for name, parts in read.items()}
    found = decoder.products(0, [decoder.embedded(row) for row in ROWS])
    prefix = "model.layers.0."
    assert [[name.removeprefix(prefix) for name in names] for names, _ in found] == [
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        ["self_attn.o_proj"],
        ["mlp.gate_proj", "mlp.up_proj"],
        ["mlp.down_proj"],
    ]
    for names, products in found:
        for name in names:
            rows = expected[name]
            torch.testing.assert_close(products.double(), rows.T @ rows, rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_not_called_is_named(tmp_path: Path) -> None:
    model = load("llama", tmp_path)
    model.module.get_submodule("model.layers.0").spare = nn.Linear(8, 8)
    decoder = Decoder(model, ROWS[0])
    with pytest.raises(ModelRefused, match=r"model\.layers\.0\.spare is not called"):
        decoder.products(0, [decoder.embedded(ROWS[0])])
