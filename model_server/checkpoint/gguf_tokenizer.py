"""The tokenizer of a GGUF file, as the files that checkpoints have.

Byte-level BPE is built here, since a file says by `tokenizer.ggml.pre` alone how texts are cut
before merges, and a tokenizer that is nearly right makes a model that is nearly right: a name that
is not known is refused. sentencepiece's are converted by transformers.

Source: the regular expressions of these names in llama.cpp, src/llama-vocab.cpp.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import AutoTokenizer

from model_server.errors import ModelRefused

_CONTROL = 3
_USER_DEFINED = 4
_NUMBERS_OF_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NUMBERS_OF_1 = _NUMBERS_OF_3.replace("{1,3}", "")
_CASED = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


_BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}

# Of sentencepiece's. transformers has Llama's and Phi-3's texts begin with a space in any case.
_NO_SPACE_FIRST = {
    "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    "pre_tokenizer": None,
    "decoder": {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
        ],
    },
}


@dataclass(frozen=True, slots=True)
class _Cut:
    """How texts are cut before merges. `pattern` None: GPT-2's.

    takes_whole: a piece that is a token stays one, whatever merges say
    adds_bos:    where the file does not say
    """

    pattern: str | None = None
    digits_alone: bool = False
    normalizes: bool = False
    takes_whole: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> dict[str, Any]:
        """As tokenizer.json has it."""
        if self.pattern is not None:
            split = {"type": "Split", "pattern": {"Regex": self.pattern}, "behavior": "Isolated"}
            return _in_turn({**split, "invert": False}, _BYTE_LEVEL)
        by_words = {**_BYTE_LEVEL, "use_regex": True}
        digits = {"type": "Digits", "individual_digits": True}
        return _in_turn(digits, by_words) if self.digits_alone else by_words


def _in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


_LLAMA_BPE = _Cut(_NUMBERS_OF_3, takes_whole=True, adds_bos=True)
_CUTS = {
    "gpt-2": _Cut(),
    "smollm": _Cut(digits_alone=True),
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _Cut(_NUMBERS_OF_1, normalizes=True),
    "deepseek-r1-qwen": _Cut(_NUMBERS_OF_1, normalizes=True),
    "dbrx": _Cut(_NUMBERS_OF_3),
    "tekken": _Cut(_CASED, takes_whole=True, adds_bos=True),
}


def write_tokenizer(path: Path, metadata: Mapping[str, Any], target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat templates of the file `path`.

    metadata: the file's, by name. Raises ModelRefused.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            config[name] = tokens[token_id]
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _converted(path) | _post_processor(metadata, tokens, default=True)
        if not metadata.get("tokenizer.ggml.add_space_prefix", True):
            tokenizer |= _NO_SPACE_FIRST
    else:
        raise ModelRefused(
            f"tokenizer.ggml.model {kind!r}: gpt2 (byte-level BPE) and llama"
            " (sentencepiece) are served"
        )
    (target / "tokenizer.json").write_text(json.dumps(tokenizer))
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    _write_templates(metadata, target)


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """The content of tokenizer.json. Raises ModelRefused."""
    name = metadata.get("tokenizer.ggml.pre", "gpt-2")
    cut = _CUTS.get(name)
    if cut is None:
        raise ModelRefused(
            f"tokenizer.ggml.pre {name!r}: how it cuts texts is not known; known are"
            f" {', '.join(_CUTS)}"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = [merge.split(" ") for merge in metadata.get("tokenizer.ggml.merges") or ()]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise ModelRefused(f"tokenizer.ggml.merges: {' '.join(merge)!r} joins no two tokens")
    kinds = metadata.get("tokenizer.ggml.token_type") or ()
    added = [
        {
            "id": index,
            "content": token,
            **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
            "special": kind == _CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=False))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    model = {
        "type": "BPE",
        **dict.fromkeys(("dropout", "unk_token"), None),
        **dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), None),
        **dict.fromkeys(("fuse_unk", "byte_fallback"), False),
        "ignore_merges": cut.takes_whole,
        "vocab": vocabulary,
        "merges": merges,
    }
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "NFC"} if cut.normalizes else None,
        "pre_tokenizer": cut.pre_tokenizer(),
        "decoder": {**_BYTE_LEVEL, "use_regex": True},
        "model": model,
        **_post_processor(metadata, tokens, default=cut.adds_bos),
    }


def _post_processor(
    metadata: Mapping[str, Any], tokens: list[str], *, default: bool
) -> dict[str, Any]:
    """What begins texts with the token for that, where the file, or else its kind, asks for it."""
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    if bos_id is None or not metadata.get("tokenizer.ggml.add_bos_token", default):
        return {"post_processor": None}
    bos = tokens[bos_id]
    first, second = (
        [
            {"SpecialToken": {"id": bos, "type_id": place}},
            {"Sequence": {"id": name, "type_id": place}},
        ]
        for place, name in enumerate("AB")
    )
    return {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": first,
            "pair": [*first, *second],
            "special_tokens": {bos: {"id": bos, "ids": [bos_id], "tokens": [bos]}},
        }
    }


def _converted(path: Path) -> dict[str, Any]:
    """The content of tokenizer.json for sentencepiece's. Raises ModelRefused."""
    try:
        # Of the file's folder transformers would rather take the tokenizer.model that is there.
        with TemporaryDirectory() as folder:
            Path(folder, path.name).symlink_to(path)
            tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    # Each kind of file fails in its own way.
    except Exception as error:
        brief = " ".join(str(error).split())[:400]
        raise ModelRefused(f"transformers cannot read its tokenizer: {brief}") from error
    content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    return content


def _write_templates(metadata: Mapping[str, Any], target: Path) -> None:
    key = "tokenizer.chat_template"
    if key in metadata:
        (target / "chat_template.jinja").write_text(metadata[key], encoding="utf-8")
    named = {
        name.removeprefix(f"{key}."): text
        for name, text in metadata.items()
        if name.startswith(f"{key}.")
    }
    folder = target / "additional_chat_templates"
    for name, text in named.items():
        if not name.isidentifier():
            raise ModelRefused(f"{key}.{name}: is no name of a template")
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.jinja").write_text(text, encoding="utf-8")
