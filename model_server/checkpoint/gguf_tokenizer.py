"""The tokenizer of a GGUF file, as the files that checkpoints have.

Byte-level BPE is built here, since a file says by `tokenizer.ggml.pre` alone how texts are cut
before merges, and a tokenizer that is nearly right makes a model that is nearly right: a name that
is not known is refused. Of sentencepiece's a file has the scores, which merges are made of.

Source: which models a name stands for is in llama.cpp, conversion/base.py. What it says here is
what their own tokenizer.json says: llama.cpp's expressions, but llama.cpp normalizes no text, and
cuts digits of DeepSeek's and words of Falcon 3's otherwise.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from model_server.errors import ModelRefused

# Of tokens.
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4
_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_NUMBERS_OF_3 = _ENDS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_BLANKS_BY_POWERS_OF_2 = _NUMBERS_OF_3.removesuffix(r"\s+(?!\S)|\s+") + (
    "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
    + r"\s{1}"
)
_NUMBERS_OF_1 = _NUMBERS_OF_3.replace("{1,3}", "")
_MARKED = _ENDS + (
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _SPACES
)
_LINES_APART = _ENDS + (r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + _SPACES)
_PHRASES = _ENDS + (
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORD = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%s"
)
_AFTER_CASED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_CASED = _CASED_WORD.replace("%s", "") + r"|\p{N}" + _AFTER_CASED
_CASED_WITH_ENDS = _CASED_WORD.replace("%s", _ENDS + "?") + r"|\p{N}{1,3}" + _AFTER_CASED
_NUMBERS_FROM_THE_END = r"\d{1,3}(?=(?:\d{3})*\b)"
_AFTER_CHINESE = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _SPACES
)
_DEEPSEEK_3 = (r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", _AFTER_CHINESE)
# As llama.cpp has it; the original has more steps.
_TRINITY = (
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
    "[一-鿿㐀-䶿豈-\ufaff\u3040-ゟ゠-ヿ･-ﾟ⼀-\u2fdfเ-\u0e7f\u0e80-\u0effក-\u17ffက-႟ꩠ-ꩿꧠ-\ua9ff가-\ud7afᄀ-ᇿ]+",
    _AFTER_CHINESE,
)
_CHINESE = "[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CHINESE)
_CASED_LETTERS = (
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-"
    r"ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ"
    r"-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    _CASED_LETTERS,
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    _CHINESE,
)


def _split(*patterns: str) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"type": "Split", "pattern": {"Regex": each}, "behavior": "Isolated", "invert": False}
        for each in patterns
    )


_BYTES = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": False,
}
_WORDS = {**_BYTES, "use_regex": True}  # GPT-2's, then bytes
_DIGITS = {"type": "Digits", "individual_digits": True}
_PUNCTUATION = {"type": "Punctuation", "behavior": "Contiguous"}

_PHI_3_KEEPING_BLANKS = ("<unk>", "<s>", "<|endoftext|>", "<|endofprompt|>")


@dataclass(frozen=True, slots=True)
class _Cut:
    """How texts are cut before merges.

    steps:       of tokenizer.json's pre_tokenizer
    normalizes:  to NFC, first
    takes_whole: a piece that is a token stays one, whatever merges say
    adds_bos:    where the file does not say
    """

    steps: tuple[dict[str, Any], ...]
    normalizes: bool = False
    takes_whole: bool = False
    adds_bos: bool = False


def _by(*patterns: str, **flags: bool) -> _Cut:
    return _Cut((*_split(*patterns), _BYTES), **flags)


_GPT_2 = _Cut((_WORDS,))
_NEOX = _Cut((_WORDS,), normalizes=True)
_DIGITS_ALONE = _Cut((_DIGITS, _WORDS))
_LLAMA_3 = _by(_NUMBERS_OF_3, takes_whole=True, adds_bos=True)
_LLAMA_3_WITHOUT_BOS = _by(_NUMBERS_OF_3, takes_whole=True)
_QWEN_2 = _by(_NUMBERS_OF_1, normalizes=True)
_O200K = _by(_CASED_WITH_ENDS, takes_whole=True)
_CUTS = {
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "exaone4": _GPT_2,
    "mellum": _GPT_2,
    "olmo": _NEOX,
    "mpt": _NEOX,
    "smollm": _DIGITS_ALONE,
    "starcoder": _DIGITS_ALONE,
    "refact": _DIGITS_ALONE,
    "command-r": _Cut((_DIGITS, _WORDS), normalizes=True),
    "falcon3": _Cut((_PUNCTUATION, _WORDS, _DIGITS)),
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "lfm2": _LLAMA_3,
    "smaug-bpe": _LLAMA_3_WITHOUT_BOS,
    "glm4": _LLAMA_3_WITHOUT_BOS,
    "chatglm-bpe": _LLAMA_3_WITHOUT_BOS,
    "dbrx": _by(_NUMBERS_OF_3),
    "jais-2": _by(_BLANKS_BY_POWERS_OF_2),
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "stablelm2": _QWEN_2,
    "hunyuan": _by(_NUMBERS_OF_1, normalizes=True, takes_whole=True),
    "solar-open": _by(_NUMBERS_OF_1),
    "qwen35": _by(_MARKED, normalizes=True),
    "seed-coder": _by(_LINES_APART, normalizes=True),
    "exaone-moe": _by(_PHRASES),
    "tekken": _by(_CASED, takes_whole=True, adds_bos=True),
    # Of Nemotron 3. Pixtral's own file has another expression by mistake, which transformers mends.
    "pixtral": _by(_CASED, takes_whole=True),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "tiny_aya": _by(_NUMBERS_FROM_THE_END, _CASED_WITH_ENDS),
    "cohere2moe": _by(_NUMBERS_FROM_THE_END, _CASED_WITH_ENDS),
    "minimax-m2": _by(_CASED_WITH_ENDS, normalizes=True),
    "deepseek-v3": _by(*_DEEPSEEK_3),
    "joyai-llm": _by(*_DEEPSEEK_3),
    "hunyuan-dense": _by(*_DEEPSEEK_3),
    "afmoe": _by(*_TRINITY),
    "deepseek-coder": _Cut((*_split(*_DEEPSEEK_CODER), _DIGITS, _BYTES)),
    "deepseek-llm": _Cut((*_split(*_DEEPSEEK_LLM), _DIGITS, _BYTES)),
}


def write_tokenizer(metadata: Mapping[str, Any], target: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and the chat templates of a file.

    metadata: the file's, by name. Raises ModelRefused.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown")):
        token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if token_id is not None and token_id < len(tokens):
            config[name] = tokens[token_id]
    kinds = metadata.get("tokenizer.ggml.token_type") or ()
    if len(kinds) != len(tokens):
        raise ModelRefused(
            f"tokenizer.ggml.token_type: {len(kinds)} of them, for {len(tokens)} tokens"
        )
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens)
    else:
        raise ModelRefused(
            f"tokenizer.ggml.model {shortened(kind)}: gpt2 (byte-level BPE) and llama"
            " (sentencepiece) are served"
        )
    (target / "tokenizer.json").write_text(json.dumps({"version": "1.0", **tokenizer}))
    (target / "tokenizer_config.json").write_text(json.dumps(config))
    _write_templates(metadata, target)


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """The content of tokenizer.json. Raises ModelRefused."""
    # Files from before May 2024 have none, and llama.cpp cuts texts of all of them in one way.
    name: Any = metadata.get("tokenizer.ggml.pre")
    cut = _CUTS.get(name)
    if cut is None:
        raise ModelRefused(
            f"tokenizer.ggml.pre {shortened(name)}: how it cuts texts is not known; known are"
            f" {', '.join(_CUTS)}"
        )
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if not metadata.get("tokenizer.ggml.merges"):
        raise ModelRefused("has no tokenizer.ggml.merges")
    merges = [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]]
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise ModelRefused(
                f"tokenizer.ggml.merges: {shortened(' '.join(merge))} joins no two tokens"
            )
    return {
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": {"type": "NFC"} if cut.normalizes else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(cut.steps)},
        "decoder": _WORDS,
        "model": {
            "type": "BPE",
            "ignore_merges": cut.takes_whole,
            "vocab": vocabulary,
            "merges": merges,
        },
        **_post_processor(metadata, tokens, default=cut.adds_bos),
    }


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> dict[str, Any]:
    """The content of tokenizer.json. Raises ModelRefused."""
    scores = metadata.get("tokenizer.ggml.scores") or ()
    if len(scores) != len(tokens):
        raise ModelRefused(
            f"tokenizer.ggml.scores: {len(scores)} of them, for {len(tokens)} tokens"
        )
    kinds = metadata["tokenizer.ggml.token_type"]
    # The file has Gemma's runs of blanks as blanks.
    tokens = [token if token.strip(" ") else "▁" * len(token) for token in tokens]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if "\t\t" in vocabulary and "\t" not in vocabulary and "<0x09>" in vocabulary:
        # Gemma's one tab is a byte, of which no merge would make more.
        vocabulary["\t"] = vocabulary.pop("<0x09>")
    # The user's own tokens first, then by scores; of two that make one token, the longer left.
    merges = [
        (kind != _USER_DEFINED, -score, -end, end - len(token), token)
        for token, score, kind in zip(tokens, scores, kinds, strict=True)
        for end in range(1, len(token))
        if token[:end] in vocabulary and token[end:] in vocabulary
    ]
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    ]
    first_step = None
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
        if "[INST]" in vocabulary and kinds[vocabulary["[INST]"]] == _CONTROL:
            # Mistral's since 0.3: not behind a token within the text, nor before another blank.
            first_step = {
                "type": "Metaspace",
                "replacement": "▁",
                "prepend_scheme": "first",
                "split": False,
            }
        else:
            normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    unknown_id = metadata.get("tokenizer.ggml.unknown_token_id", len(tokens))
    return {
        "added_tokens": _added_tokens(metadata, tokens),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": first_step,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "unk_token": tokens[unknown_id] if unknown_id < len(tokens) else None,
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": vocabulary,
            "merges": [(token[:end], token[end:]) for *_, end, token in sorted(merges)],
        },
        **_post_processor(metadata, tokens, default=True),
    }


def _added_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> list[dict[str, Any]]:
    """Those that are found in texts before these are cut."""
    kinds = metadata["tokenizer.ggml.token_type"]
    # No file says so, but behind most tokens of Phi-3 and Phi-4-mini blanks are dropped.
    is_phi_3 = (
        metadata.get("general.architecture") == "phi3"
        and metadata.get("tokenizer.ggml.pre") != "dbrx"
    )
    return [
        {
            "id": index,
            "content": token,
            **dict.fromkeys(("single_word", "lstrip", "normalized"), False),
            "rstrip": is_phi_3 and token not in _PHI_3_KEEPING_BLANKS,
            "special": kind != _USER_DEFINED,
        }
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
    ]


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
