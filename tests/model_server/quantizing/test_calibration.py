"""Rows to quantize by: of texts, or of the model's own."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from launcher import BUNDLED_MODEL
from model_server.checkpoint.check import ModelSettings
from model_server.engine.distributed import World
from model_server.errors import ConfigRefused, ModelRefused
from model_server.executor.executor import PagedModel
from model_server.loading import load_model
from model_server.quantizing.calibration import Calibration
from tests.model_server.checkpoint import tiny_models


def of_lines(path: Path, lines: Sequence[Any], seed: int = 0, max_len: int = 16) -> Calibration:
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return Calibration.of_texts(path, BUNDLED_MODEL, seed, max_len)


STORIES = [{"text": f"Once there was a fox who had {number} apples."} for number in range(40)]


def texts_of(calibration: Calibration) -> str:
    tokenizer = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
    rows = [*calibration.held_out, *calibration.rows]
    return str(tokenizer.decode(torch.cat(rows)))


def test_rows_are_cut_of_all_texts_in_an_order_by_the_seed(tmp_path: Path) -> None:
    found = of_lines(tmp_path / "a.jsonl", STORIES)
    assert {len(row) for row in (*found.rows, *found.held_out)} == {16}
    text = texts_of(found)
    assert text.count("Once there was a fox") >= 38
    assert text.index("apples") < text.index("had 39")
    assert texts_of(of_lines(tmp_path / "a.jsonl", STORIES)) == text
    assert texts_of(of_lines(tmp_path / "a.jsonl", STORIES, seed=1)) != text


def test_one_row_in_nine_is_held_out_and_sixteen_at_most(tmp_path: Path) -> None:
    few = of_lines(tmp_path / "a.jsonl", STORIES[:20])
    assert len(few.held_out) == (len(few.held_out) + len(few.rows)) // 9
    many = of_lines(tmp_path / "a.jsonl", STORIES * 10)
    assert (len(many.rows), len(many.held_out)) == (128, 16)


def test_a_conversation_is_written_by_the_chat_template(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Good day."},
    ]
    found = of_lines(tmp_path / "a.jsonl", [{"messages": messages}] * 20)
    assert "<|user|>Hello!<|end|><|assistant|>Good day.<|end|>" in texts_of(found)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "a.jsonl:1: is not JSON"),
        (['{"text": "a"}', "", '{"text": 3}'], 'a.jsonl:3: must be {"text": "..."} or'),
        (["[]"], "a.jsonl:1: must be"),
        (['{"messages": [3]}'], "a.jsonl:1: the chat template refuses it"),
        (['{"text": "Once."}'], "has 2 tokens, and must have 144 at least"),
    ],
)
def test_a_wrong_file_is_refused_with_the_line(lines: list[str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigRefused) as refused:
        Calibration.of_texts(path, BUNDLED_MODEL, 0, 16)
    assert said in str(refused.value)


def test_what_is_no_file_and_what_is_no_tokenizer_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"nothing\.jsonl"):
        Calibration.of_texts(tmp_path / "nothing.jsonl", BUNDLED_MODEL, 0, 16)
    with pytest.raises(ModelRefused, match="its tokenizer cannot be read"):
        Calibration.of_texts(tmp_path / "nothing.jsonl", tmp_path, 0, 16)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PagedModel:
    config = tiny_models.CONFIGS["llama"]()
    config.max_position_embeddings = 32
    folder = tmp_path_factory.mktemp("model")
    tiny_models.of_config(config).save_pretrained(folder)
    return load_model(ModelSettings(folder, torch.device("cpu"), dtype="float32"), World())


def test_a_seed_draws_the_same_rows_of_the_model_s_context(model: PagedModel) -> None:
    first = Calibration.drawn(model, 3)
    assert (len(first.rows), len(first.held_out)) == (64, 16)
    rows = torch.stack(first.rows)
    assert rows.shape == (64, 32)
    assert torch.equal(torch.stack(Calibration.drawn(model, 3).rows), rows)
    assert not torch.equal(torch.stack(Calibration.drawn(model, 4).rows), rows)


def test_tokens_are_drawn_by_the_model_s_own_shares(
    model: PagedModel, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rows = torch.stack(Calibration.drawn(model, 0).rows)
    exact = tiny_models.build("llama", context_len=32)
    with torch.inference_mode():
        shares = exact(rows).logits.double().log_softmax(-1)[:, :-1]
    said = shares.gather(-1, rows[:, 1:, None])[..., 0]
    entropy = -(shares.exp() * shares).sum(-1)
    # 2000 draws: the mean surprise is the entropy, but for chance.
    assert abs(float((said + entropy).mean())) < 5 * float(said.std()) / said.numel() ** 0.5
