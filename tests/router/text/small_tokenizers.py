"""Small real tokenizers, one of each kind that models come with."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from router.text.tokenizer import Tokenizer as RouterTokenizer

CORPUS = (
    "The quick brown fox's lazy dog didn't jump over 3 + 4 = 7 hedges. Is it so, or not? Yes!",
    "Zażółć gęślą jaźń, zażółć żółte źdźbła. Größe, naïve café, über.",
    "日本語の文章です。日本語の文章。Привет, мир! Привет. 🙂🙃👩‍👩‍👧 🙂",
    "def f(x):\n\treturn [x  for   x in range(10)]\r\n",
)
SPECIAL = ("<unk>", "<s>", "</s>", "<|end|>")


def byte_level() -> Tokenizer:
    """GPT-2, Llama 3, Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(SPECIAL),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    # Added tokens: one whose letters stand for other bytes, one that no byte stands for, two
    # with spaces, a space in the alphabet's writing, an incomplete character.
    tokenizer.add_tokens(["éa", "日本", "a b", "a\u00a0b", "Ġadded", "â"])
    return _with_bos(tokenizer)


def byte_fallback() -> Tokenizer:
    """Llama 2, Mistral: bytes for rare characters, the text's first space falls off."""
    tokenizer = Tokenizer(_sentencepiece_bpe())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return _with_bos(_with_special(tokenizer))


def byte_fallback_unstripped() -> Tokenizer:
    """Gemma."""
    tokenizer = Tokenizer(_sentencepiece_bpe())
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _with_bos(_with_special(tokenizer))


def metaspace() -> Tokenizer:
    """T5 and other unigram models."""
    words = {w for line in CORPUS for w in line.replace(" ", " ▁").split()}
    pieces = sorted(words | {c for line in CORPUS for c in line} | {"▁", "▁a▁", "▁▁"})
    vocab = [(token, 0.0) for token in SPECIAL] + [(p, -float(len(p))) for p in pieces]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _with_bos(_with_special(tokenizer))


def word_piece() -> Tokenizer:
    """BERT."""
    letters = sorted({c for line in CORPUS for c in line if not c.isspace()})
    pieces = [*SPECIAL, *letters, *("##" + c for c in letters), "quick", "##n't", "n't", "do not"]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return _with_bos(_with_special(tokenizer))


def undecoded() -> Tokenizer:
    """Whole words and no decoder at all."""
    words = sorted({word for line in CORPUS for word in line.split()})
    vocab = {token: index for index, token in enumerate([*SPECIAL, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_bos(_with_special(tokenizer))


def suffixed() -> Tokenizer:
    """The first GPT: a word's end is marked, so a token's text depends on the next one."""
    letters = sorted({c for line in CORPUS for c in line if not c.isspace()})
    pieces = [*SPECIAL, *letters, *(c + "</w>" for c in letters)]
    vocab = {token: index for index, token in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return _with_bos(_with_special(tokenizer))


KINDS: Mapping[str, Callable[[], Tokenizer]] = {
    build.__name__: build
    for build in (
        byte_level,
        byte_fallback,
        byte_fallback_unstripped,
        metaspace,
        word_piece,
        undecoded,
        suffixed,
    )
}


def save(backend: Tokenizer, folder: Path, **config: Any) -> Path:
    """Write tokenizer.json and tokenizer_config.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def load(folder: Path, backend: Tokenizer | None = None, **config: Any) -> RouterTokenizer:
    """The router's tokenizer of such a folder."""
    return RouterTokenizer.load(save(backend or byte_level(), folder, **config))


def _sentencepiece_bpe() -> models.BPE:
    symbols = sorted({c for line in CORPUS for c in line if c.isascii() and c not in " \n\r\t"})
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("q", "u"), ("i", "c"), ("▁", "▁")]
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *symbols, "é", "日本"]
    pieces += [left + right for left, right in merges]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(pieces))}
    return models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)


def _with_special(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    tokenizer.add_tokens(["<note>", " spaced ▁ out "])
    return tokenizer


def _with_bos(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer
