"""The ends that a checkpoint's files name, in every way in which they do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from constraints.special_tokens import EndTokens

TOKENIZER = {
    "added_tokens": [{"id": 7, "content": "<|im_end|>"}, {"id": 8, "content": "</s>"}],
    "model": {"vocab": {"fox": 3, "<|im_end|>": 7}},
}


def read(folder: Path, **files: Any) -> EndTokens:
    """The ends of a folder with these files: `config=` is config.json."""
    for name, content in {"tokenizer": TOKENIZER, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return EndTokens.read(folder, folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (2, (2,)),
        ([2, 5, 2], (2, 5)),
        ([], ()),
        (None, ()),
    ],
)
@pytest.mark.parametrize("name", ["config", "generation_config"])
def test_a_model_names_an_id_a_list_of_ids_or_none(
    name: str, named: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, **{name: {"eos_token_id": named}}).ids == expected


def test_a_model_of_several_parts_names_that_of_its_text(tmp_path: Path) -> None:
    assert read(tmp_path, config={"text_config": {"eos_token_id": 4}}).ids == (4,)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("<|im_end|>", (7,)),
        ({"content": "</s>", "lstrip": False}, (8,)),
        (["</s>", {"content": "<|im_end|>"}], (8, 7)),
        ("fox", (3,)),
        ("no token", ()),
        (None, ()),
    ],
)
def test_a_tokenizer_names_texts_objects_a_list_or_none(
    named: Any, expected: tuple[int, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, tokenizer_config={"eos_token": named}).ids == expected


def test_what_the_tokenizers_config_leaves_open_the_map_of_special_tokens_says(
    tmp_path: Path,
) -> None:
    ends = read(tmp_path, special_tokens_map={"eos_token": "</s>"}, tokenizer_config={})
    assert ends.ids == (8,)


def test_a_vocabulary_with_scores_has_its_ids_in_order(tmp_path: Path) -> None:
    tokenizer = {"model": {"vocab": [["a", -1.0], ["</s>", 0.0]]}}
    assert read(tmp_path, tokenizer=tokenizer, tokenizer_config={"eos_token": "</s>"}).ids == (1,)


def test_every_end_that_any_file_names_is_one(tmp_path: Path) -> None:
    ends = read(
        tmp_path,
        generation_config={"eos_token_id": 1},
        config={"eos_token_id": [1, 2]},
        tokenizer_config={"eos_token": "<|im_end|>"},
    )
    assert ends.ids == (1, 2, 7)
    assert (
        ends.contradiction == "generation_config.json 1; config.json 1, 2; tokenizer_config.json 7"
    )


def test_a_file_that_names_all_of_them_contradicts_none(tmp_path: Path) -> None:
    ends = read(
        tmp_path,
        generation_config={"eos_token_id": [7, 1]},
        config={"eos_token_id": 1},
        tokenizer_config={"eos_token": "<|im_end|>"},
    )
    assert (ends.ids, ends.contradiction) == ((7, 1), None)
    (tmp_path / "none").mkdir()
    assert read(tmp_path / "none").contradiction is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"config": {"eos_token_id": "</s>"}}, "config.json: eos_token_id '</s>': must be the id"),
        ({"config": {"eos_token_id": [1, True]}}, "eos_token_id [1, True]: must be the id"),
        ({"config": [1]}, "config.json: is no JSON object"),
        ({"tokenizer_config": {"eos_token": 5}}, "eos_token 5: must be the text of a token"),
        (
            {"tokenizer": {"added_tokens": [{}]}, "tokenizer_config": {"eos_token": "</s>"}},
            "tokenizer.json: its tokens are malformed",
        ),
    ],
)
def test_what_names_no_token_is_refused_with_its_file(
    files: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        read(tmp_path, **files)
