"""A published model's file is read as its own config.json, whatever its size."""

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from transformers import CONFIG_MAPPING, AutoConfig

from model_server import zoo
from model_server.checkpoint.gguf_architectures import ARCHITECTURES
from model_server.checkpoint.gguf_conversion import convert
from tests.model_server.checkpoint.converted.published import CONFIGS, PUBLISHED

DESCRIBED: dict[str, Any] = json.loads(PUBLISHED.read_text())


def write_hollow(path: Path, module: Any, described: Any) -> None:
    """A file whose metadata and tensors are a published model's, with no numbers in them."""
    metadata = described["metadata"]
    architecture = metadata["general.architecture"]
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if key != "general.architecture":
            of_type = gguf.GGUFValueType.get_type(value)
            of_items = gguf.GGUFValueType.get_type(value[0]) if isinstance(value, list) else None
            writer.add_key_value(key, value, of_type, of_items)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(["a", "b", "ab"])
    writer.add_token_types([1, 1, 1])
    writer.add_token_merges(["a b"])
    made = {name: np.array(each, np.float32) for name, each in described["tensors"].items()}
    shapes = {name: each.shape for name, each in made.items()}
    (arch,) = [arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture]
    names = gguf.get_tensor_name_map(arch, module.config.num_hidden_layers)
    for name, parameter in module.named_parameters():
        stored_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored_name is not None
        shapes[stored_name] = tuple(parameter.shape)
    num_bytes = 0
    for name, shape in shapes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * int(np.prod(shape)))
        num_bytes += 4 * int(np.prod(shape)) + 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(bytes(-file.tell() % 32))
        for each in made.values():
            file.write(each.tobytes())
    os.truncate(path, path.stat().st_size + num_bytes)


def rotations(module: Any) -> dict[str, Any]:
    """What its layers rotate by: frequencies, and by what attention is scaled."""
    rotary = type(module.model.rotary_emb)(module.config)
    scales = {name: value for name, value in vars(rotary).items() if "attention_scaling" in name}
    return scales | {name: each.tolist() for name, each in rotary.named_buffers()}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_published_models_file_says_what_its_own_config_does(name: str, tmp_path: Path) -> None:
    published = CONFIGS[name]
    expected = CONFIG_MAPPING[published["model_type"]](**published)
    module = zoo.build_empty(expected, trust_remote_code=False).module
    write_hollow(tmp_path / "model.gguf", module, DESCRIBED[name])
    convert(tmp_path / "model.gguf", tmp_path)
    read = AutoConfig.from_pretrained(tmp_path)
    # Tokens are the file's own, and how a rotation is written may differ.
    others = {"rope_parameters", "dtype", "architectures", "transformers_version", "_name_or_path"}
    for key, value in expected.to_dict().items():
        if key not in others and not key.endswith("_token_id"):
            of_file = read.to_dict().get(key, value)
            assert of_file == (pytest.approx(value) if isinstance(value, float) else value), key
    rotated = rotations(zoo.build_empty(read, trust_remote_code=False).module)
    for key, value in rotations(module).items():
        assert rotated[key] == pytest.approx(value), key


def test_the_page_of_models_names_every_architecture() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text()
    assert not [name for name in ARCHITECTURES if f"`{name}`" not in page]
