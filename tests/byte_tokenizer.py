"""A tokenizer of one token per byte: ids that a test can write down by itself."""

import json
from pathlib import Path

EOS_ID = 0
BOS_ID = 1
NUM_SPECIAL = 2
VOCAB_SIZE = NUM_SPECIAL + 256


def byte_ids(text: str) -> list[int]:
    """The byte tokenizer's ids of `text`."""
    return [NUM_SPECIAL + byte for byte in text.encode()]


def save_byte_tokenizer(folder: Path) -> Path:
    """A tokenizer.json of one token per byte, `</s>` = 0 and `<s>` = 1; returns the folder."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    symbols = {byte: chr(byte) for byte in shown}
    symbols |= {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}
    vocab = {symbols[byte]: NUM_SPECIAL + byte for byte in range(256)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {"id": EOS_ID, "content": "</s>", "special": True, **special},
            {"id": BOS_ID, "content": "<s>", "special": True, **special},
        ],
        "pre_tokenizer": byte_level | {"use_regex": False},
        "decoder": byte_level | {"use_regex": False},
        "model": {"type": "BPE", "vocab": {"</s>": EOS_ID, "<s>": BOS_ID, **vocab}, "merges": []},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
