"""What a broken or hostile GGUF file says is refused in one line, by its name."""

import struct
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFValueType, GGUFWriter

from model_server.checkpoint.gguf_conversion import main
from model_server.checkpoint.gguf_source import GgufSource
from model_server.errors import ModelRefused
from tests.model_server.checkpoint.gguf_files import small_model, write_gguf


def read(folder: Path, **metadata: Any) -> dict[str, Any]:
    """What a file without tensors says; names with __ for a dot."""
    writer = GGUFWriter(folder / "model.gguf", "llama")
    for name, value in ({"llama__block_count": 2} | metadata).items():
        kinds = {str: GGUFValueType.STRING, float: GGUFValueType.FLOAT64, bool: GGUFValueType.BOOL}
        kind = kinds.get(type(value), GGUFValueType.INT64)
        writer.add_key_value(
            name.replace("__", "."),
            value,
            GGUFValueType.ARRAY if isinstance(value, list) else kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return GgufSource(folder / "model.gguf").metadata


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama__embedding_length": "four"}, r"llama\.embedding_length 'four': .* finite number"),
        ({"llama__embedding_length": -4}, r"llama\.embedding_length -4: is not from 0 to"),
        ({"llama__embedding_length": 1 << 60}, "is not from 0 to 1099511627776"),
        ({"llama__context_length": (1 << 32) - 1}, "4294967295: is not from 0 to 16777216"),
        ({"llama__embedding_length": [4, 4]}, r"\[4, 4\]: is not a finite number"),
        ({"llama__rope__freq_base": float("nan")}, "nan: is not a finite number"),
        ({"llama__rope__freq_base": 1e300 * 1e10}, "inf: is not a finite number"),
        ({"llama__rope__scaling__type": 4}, "4: is not a text"),
        ({"llama__attention__head_count": [2] * 5}, "has 5 numbers, for 2 layers"),
        ({"llama__attention__head_count": ["a", "b"]}, "or a list of finite numbers"),
        ({"tokenizer__ggml__tokens": [1, 2]}, r"\[1, 2\]: is not a list of texts"),
        ({"tokenizer__ggml__tokens": 7}, "7: is not a list of texts"),
        ({"tokenizer__ggml__scores": ["a"]}, "is not a list of finite numbers"),
        ({"tokenizer__ggml__eos_token_id": -1}, "-1: is no number of a token"),
        ({"tokenizer__ggml__eos_token_id": 0.5}, "0.5: is no number of a token"),
        ({"tokenizer__chat_template": 4}, "4: is not a text"),
        ({"tokenizer__ggml__pre": [1]}, r"\[1\]: is not a text"),
        ({"split__count": [2]}, r"\[2\]: is not a finite number"),
        ({"general__sampling__temp": "hot"}, "'hot': is not a finite number"),
    ],
)
def test_a_value_of_another_sort_is_refused_by_its_name(
    metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelRefused, match=reason):
        read(tmp_path, **metadata)


def test_values_of_their_sorts_are_read(tmp_path: Path) -> None:
    given = {"llama__attention__head_count": [4, 0], "tokenizer__ggml__tokens": ["é", ""]}
    metadata = read(tmp_path, **given)
    assert {name: metadata[name.replace("__", ".")] for name in given} == given


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"gpt2", b"gp\xff2", "tokenizer.ggml.model: is no text in UTF-8"),
        # A list's length.
        (struct.pack("<IQ", 8, 256), struct.pack("<IQ", 8, 1 << 40), "a list of 1099511627776"),
        # What a tensor has after its name: its kind, F32, which is another's of more bytes, F64.
        (
            b"output_norm.weight" + struct.pack("<IQI", 1, 128, 0),
            b"output_norm.weight" + struct.pack("<IQI", 1, 128, 28),
            "and not behind the tensor before it",
        ),
    ],
)
def test_a_broken_file_is_one_clear_line(
    old: bytes, new: bytes, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"))
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))
    assert main([str(path), str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert reason in said


@pytest.mark.parametrize("alignment", [1, 32])
def test_a_file_may_say_how_its_tensors_are_aligned(alignment: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"))
    said = tmp_path / "said.gguf"
    write_gguf(said, small_model("llama"), general__alignment=alignment)
    assert GgufSource(said).tensors.keys() == GgufSource(path).tensors.keys()


@pytest.mark.parametrize("alignment", [0, 7])
def test_an_alignment_that_is_no_power_of_two_is_refused(alignment: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", small_model("llama"), general__alignment=alignment)
    with pytest.raises(ModelRefused, match="is no whole GGUF file: Invalid alignment"):
        GgufSource(path)


def test_lists_within_lists_have_an_end(tmp_path: Path) -> None:
    name = b"a"
    nested = struct.pack("<IQ", GGUFValueType.ARRAY, 1) * 5000
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    field = struct.pack("<Q", len(name)) + name + struct.pack("<I", GGUFValueType.ARRAY)
    path = tmp_path / "model.gguf"
    path.write_bytes(header + field + nested)
    with pytest.raises(ModelRefused, match="is no whole GGUF file"):
        GgufSource(path)
