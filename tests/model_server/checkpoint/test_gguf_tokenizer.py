"""A GGUF file's tokenizer cuts texts as the one that it was made of."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, Punctuation, Split
from tokenizers.pre_tokenizers import Sequence as Steps
from tokenizers.trainers import BpeTrainer

from model_server.checkpoint.gguf_tokenizer import write_tokenizer
from model_server.errors import ModelRefused

ROOT = Path(__file__).resolve().parents[3]
CORPUS = ROOT / "docs" / "constraints.md"
TEXTS = (
    "Naïve foxes DON'T ask: where is 42 or 31415?\n\tif x == {'a': 1.5}:  # 你好 🙂",
    "  a   b\r\n\r\nc  e\u0301 HTTPServer's 12,345.67\n\n\n",
    "<|im_start|>user\nhi<think>\n</think><|im_end|>\n",
    "नमस्ते สวัสดี 안녕 世界 сон'S ½ ²x 12345 ..\n\n./a\n/ \u3000x\u00a0 \r\r y's  ",
)


def _split(*patterns: str) -> list[Any]:
    return [Split(Regex(each), behavior="isolated") for each in patterns]


_WORDS = ByteLevel(add_prefix_space=False)
_BYTES = ByteLevel(add_prefix_space=False, use_regex=False)
_DIGITS = Digits(individual_digits=True)
_LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll"
    r"|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve"
    r"|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A name of each cut, with what the original tokenizer.json of its model has.
_PRE: dict[str, list[Any]] = {
    "gpt-2": [_WORDS],
    "olmo": [_WORDS],
    "smollm": [_DIGITS, _WORDS],
    "command-r": [_DIGITS, _WORDS],
    "falcon3": [Punctuation(behavior="contiguous"), _WORDS, _DIGITS],
    "llama-bpe": [*_split(_LLAMA_3), _BYTES],
    "jais-2": [
        *_split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)"
            r"|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
        ),
        _BYTES,
    ],
    "qwen2": [*_split(_LLAMA_3.replace("{1,3}", "")), _BYTES],
    "qwen35": [
        *_split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
            r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "seed-coder": [
        *_split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "exaone-moe": [
        *_split(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+"
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
        _BYTES,
    ],
    "tekken": [*_split(_TEKKEN), _BYTES],
    "gpt-4o": [*_split(_GPT_4O), _BYTES],
    "tiny_aya": [*_split(r"\d{1,3}(?=(?:\d{3})*\b)", _GPT_4O), _BYTES],
    "minimax-m2": [Split(Regex(_GPT_4O), behavior="removed", invert=True), _BYTES],
    "deepseek-v3": [
        *_split(
            r"\p{N}{1,3}",
            "[一-龥\u3040-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
            "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
        ),
        _BYTES,
    ],
    "deepseek-coder": [
        *_split("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"),
        _DIGITS,
        _BYTES,
    ],
}
_NORMALIZED = ("olmo", "command-r", "qwen2", "qwen35", "seed-coder", "minimax-m2")


def trained(pre: str) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = Steps(_PRE[pre])
    tokenizer.normalizer = NFC() if pre in _NORMALIZED else None
    tokenizer.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    tokenizer.train(
        [str(CORPUS)], BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), "</think>"])
    return tokenizer


def pieces(tokenizer: Tokenizer, text: str) -> Any:
    normalizer = tokenizer.normalizer
    normal = text if normalizer is None else normalizer.normalize_str(text)
    return tokenizer.pre_tokenizer.pre_tokenize_str(normal)


def metadata_of(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    tokens = [tokenizer.id_to_token(index) for index in range(tokenizer.get_vocab_size())]
    added = tokenizer.get_added_tokens_decoder()
    kinds = [
        1 if index not in added else 3 if added[index].special else 4
        for index in range(len(tokens))
    ]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(merge) for merge in merges],
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "tokenizer.chat_template": "{{ messages[0].content }}",
        "tokenizer.chat_template.tool_use": "{{ tools }}",
    }


@pytest.mark.parametrize("pre", _PRE)
def test_byte_level_bpe_cuts_texts_as_before(pre: str, tmp_path: Path) -> None:
    original = trained(pre)
    write_tokenizer(metadata_of(original, pre), tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*TEXTS, CORPUS.read_text()):
        ids = made.encode(text, add_special_tokens=False).ids
        assert ids == original.encode(text, add_special_tokens=False).ids
        assert made.decode(ids) == original.decode(ids)
        assert pieces(made, text) == pieces(original, text)
    assert made.token_to_id("<|im_end|>") in made.get_added_tokens_decoder()
    begins = made.encode("hi").tokens[0] == "<|im_start|>"
    assert begins == (pre in ("llama-bpe", "tekken"))


def test_trinitys_numbers_are_cut_from_their_end(tmp_path: Path) -> None:
    write_tokenizer(metadata_of(trained("deepseek-v3"), "afmoe"), tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = [piece for piece, _ in pieces(made, "is 1234567 or 12.345")]
    assert found == ["is", "Ġ", "1", "234", "567", "Ġor", "Ġ", "12", ".", "345"]


def test_named_tokens_and_templates_are_written(tmp_path: Path) -> None:
    write_tokenizer(metadata_of(trained("gpt-2"), "gpt-2"), tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert "messages" in (tmp_path / "chat_template.jinja").read_text()
    named = tmp_path / "additional_chat_templates" / "tool_use.jinja"
    assert named.read_text() == "{{ tools }}"


def sentencepiece(folder: Path, adds_space: bool, symbols: Sequence[str] = ()) -> Any:
    """Its own library's, and what a file has of it."""
    SentencePieceTrainer.train(
        input=str(CORPUS),
        model_prefix=str(folder / "original"),
        model_type="bpe",
        vocab_size=600,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=adds_space,
        user_defined_symbols=list(symbols),
        control_symbols=["[INST]"],
        minloglevel=2,
    )
    original = SentencePieceProcessor(model_file=str(folder / "original.model"))
    ids = range(original.get_piece_size())
    pieces = [original.id_to_piece(index) for index in ids]
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            piece.replace("▁", " ") if piece in symbols else piece for piece in pieces
        ],
        "tokenizer.ggml.scores": [
            -1000.0 if pieces[index] in symbols else original.get_score(index) for index in ids
        ],
        "tokenizer.ggml.token_type": [
            4 if pieces[index] in symbols
            else 2 if original.is_unknown(index)
            else 3 if original.is_control(index) and pieces[index] != "[INST]"
            else 6 if original.is_byte(index)
            else 1
            for index in ids
        ],
        "tokenizer.ggml.add_space_prefix": adds_space,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    return original, metadata


@pytest.mark.parametrize(
    ("adds_space", "symbols"),
    [(True, ()), (False, ()), (False, ("▁▁", "▁▁▁", "\n\n"))],
)
def test_sentencepiece_cuts_texts_as_its_own_library(
    adds_space: bool, symbols: tuple[str, ...], tmp_path: Path
) -> None:
    original, metadata = sentencepiece(tmp_path, adds_space, symbols)
    write_tokenizer(metadata, tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in (*TEXTS, "Hello", " ", "  two", "\n", "a     b \n\n\n c", CORPUS.read_text()):
        found = made.encode(text, add_special_tokens=False).ids
        assert found == original.encode(text)
        assert made.decode(found) == text
    assert made.encode("a fox").ids == [1, *original.encode("a fox")]
    behind = made.encode("a</s> fox", add_special_tokens=False).ids
    assert behind == [*original.encode("a"), 2, *original.encode(" fox")]


def test_gemmas_tabs_are_joined_where_they_are_no_tokens_of_the_users(tmp_path: Path) -> None:
    original, metadata = sentencepiece(tmp_path, adds_space=False, symbols=("\t\t",))
    metadata["tokenizer.ggml.token_type"][metadata["tokenizer.ggml.tokens"].index("\t\t")] = 1
    write_tokenizer(metadata, tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("a\tb", "a\t\tb"):
        found = made.encode(text, add_special_tokens=False).ids
        assert found == original.encode(text)
        assert made.decode(found) == text


def test_mistrals_texts_have_one_blank_behind_a_token(tmp_path: Path) -> None:
    original, metadata = sentencepiece(tmp_path, adds_space=True)
    token = metadata["tokenizer.ggml.tokens"].index("[INST]")
    metadata["tokenizer.ggml.token_type"][token] = 3
    write_tokenizer(metadata, tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    fox = original.encode("fox")
    assert made.encode("fox[INST] fox").ids == [1, *fox, token, *fox]


def test_phi_3s_tokens_take_the_blanks_behind_them(tmp_path: Path) -> None:
    metadata = metadata_of(trained("gpt-4o"), "gpt-4o")
    write_tokenizer({**metadata, "general.architecture": "phi3"}, tmp_path)
    made = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert made.encode("<|im_start|> \nhi").ids == made.encode("<|im_start|>hi").ids


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer.ggml.pre": "of-mine"}, "'of-mine': how it cuts texts is not known"),
        ({"tokenizer.ggml.pre": None}, "None: how it cuts texts is not known"),
        ({"tokenizer.ggml.model": "bert"}, "'bert': gpt2"),
        ({"tokenizer.ggml.model": "llama"}, r"tokenizer\.ggml\.scores: 0 of them, for \d+ tokens"),
        ({"tokenizer.ggml.merges": ["no such"]}, r"tokenizer\.ggml\.merges"),
        ({"tokenizer.chat_template.../x": ""}, "no name of a template"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    metadata = metadata_of(trained("gpt-2"), "gpt-2") | changes
    with pytest.raises(ModelRefused, match=reason):
        write_tokenizer(metadata, tmp_path)
