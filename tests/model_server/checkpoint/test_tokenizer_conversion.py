"""A tokenizer.json is made of what a checkpoint has instead, or refused where it would differ."""

import base64
import json
from pathlib import Path
from typing import Literal

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import Tokenizer

from launcher import BUNDLED_MODEL
from model_server.checkpoint.tokenizer_conversion import NotConverted, convert, main

ROOT = Path(__file__).resolve().parents[3]
TEXT = "Naïve foxes ask: where is 42?\n\tif x == {'a': 1.5}:  # 你好 🙂"


def sentencepiece_folder(
    folder: Path, kind: Literal["bpe", "unigram"], tokenizer_class: str | None = None
) -> Path:
    SentencePieceTrainer.train(
        input=str(ROOT / "docs" / "constraints.md"),
        model_prefix=str(folder / "tokenizer"),
        model_type=kind,
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    (folder / "tokenizer.vocab").unlink()
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    of_class = {"tokenizer_class": tokenizer_class} if tokenizer_class else {}
    config = {**named, **of_class, "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_model_cuts_texts_as_before(
    kind: Literal["bpe", "unigram"], tmp_path: Path
) -> None:
    folder = sentencepiece_folder(tmp_path, kind)
    convert(folder, tmp_path / "made", trust_remote_code=False)
    made = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    original = SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    ids = made.encode(TEXT, add_special_tokens=False).ids
    assert ids == original.encode(TEXT)
    assert made.decode(ids) == TEXT
    assert "messages" in (tmp_path / "made" / "chat_template.jinja").read_text()


def test_one_that_would_cut_texts_otherwise_is_refused(tmp_path: Path) -> None:
    folder = sentencepiece_folder(tmp_path, "unigram", "LlamaTokenizer")
    with pytest.raises(NotConverted, match=r"as transformers converts tokenizer\.model"):
        convert(folder, tmp_path / "made", trust_remote_code=False)
    assert not (tmp_path / "made").exists()


def test_a_tiktoken_file_is_read(tmp_path: Path) -> None:
    tokens = [bytes([byte]) for byte in range(256)] + [b" f", b"ox", b" fox"]
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens)]
    (tmp_path / "tokenizer.model").write_text("\n".join(lines))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    convert(tmp_path, tmp_path / "made", trust_remote_code=False)
    made = Tokenizer.from_file(str(tmp_path / "made" / "tokenizer.json"))
    assert made.encode("a fox", add_special_tokens=False).ids == [ord("a"), 258]


def test_files_that_are_no_tokenizer_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\0\1")
    (tmp_path / "config.json").write_bytes((BUNDLED_MODEL / "config.json").read_bytes())
    assert main([str(tmp_path), str(tmp_path / "made")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path} has no tokenizer.json, and transformers cannot")
    assert said.count("\n") == 1
