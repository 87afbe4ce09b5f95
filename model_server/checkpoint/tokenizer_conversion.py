"""Makes the tokenizer.json that a checkpoint lacks, from its sentencepiece or tiktoken files.

    python -m model_server.checkpoint.tokenizer_conversion FOLDER TARGET [--trust-remote-code]

TARGET gets all files of the tokenizer, chat templates among them. transformers converts; whether
what comes out cuts texts as sentencepiece's own library does is tried here, since a tokenizer that
is nearly right makes a model that is nearly right. Exit codes: 0 converted; 1 not, with a line on
stderr.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sentencepiece import SentencePieceProcessor
from transformers import AutoTokenizer

# None begins with a space: there transformers adds none, where sentencepiece adds one to it.
_SAMPLES = (
    "Once there was a fox, who didn't like Mondays: 3.14 > 2!",
    "def f(x):\n    if x:\n\treturn {'a': x ** 2}  # HTTP/1.1\n\n",
    "naïve café, 你好, Ω ≈ 7, 🙂",
)


class NotConverted(Exception):
    """The files make no tokenizer that could be trusted; the message is the reason."""


def convert(folder: Path, target: Path, *, trust_remote_code: bool) -> None:
    """Write the tokenizer of `folder` to `target`. Raises NotConverted."""
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=trust_remote_code, local_files_only=True
        )
    # Each kind of file fails in its own way.
    except Exception as error:
        brief = " ".join(str(error).split())[:400]
        raise NotConverted(f"transformers cannot read it: {brief}") from error
    if not getattr(tokenizer, "is_fast", False):
        raise NotConverted(
            f"transformers has no conversion of a {type(tokenizer).__name__} to tokenizer.json"
        )
    for path in sorted(folder.glob("*.model")):
        _require_same_pieces(tokenizer, path)
    tokenizer.save_pretrained(target)
    if not (target / "tokenizer.json").is_file():
        raise NotConverted(f"a {type(tokenizer).__name__} writes no tokenizer.json")


def _require_same_pieces(tokenizer: Any, path: Path) -> None:
    """Raises NotConverted where sentencepiece cuts a sample otherwise."""
    try:
        original = SentencePieceProcessor(model_file=str(path))
    except RuntimeError:
        # tiktoken's files have the same name; no library knows how such a model cuts texts.
        return
    for sample in _SAMPLES:
        ids = original.encode(sample)
        if original.unk_id() in ids:
            continue
        expected = original.id_to_piece(ids)
        found = tokenizer.convert_ids_to_tokens(tokenizer.encode(sample, add_special_tokens=False))
        if found != expected:
            raise NotConverted(
                f"as transformers converts {path.name}, {sample!r} becomes {found[:8]}..., and"
                f" {expected[:8]}... by sentencepiece itself"
            )


def main(argv: Sequence[str]) -> int:
    """Convert one folder's; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m model_server.checkpoint.tokenizer_conversion")
    parser.add_argument("folder", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--trust-remote-code", action="store_true")
    given = parser.parse_args(argv)
    try:
        convert(given.folder, given.target, trust_remote_code=given.trust_remote_code)
    except NotConverted as error:
        sys.stderr.write(f"error: {given.folder} has no tokenizer.json, and {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    # Notes of the library's, which concern nobody here.
    logging.disable(logging.WARNING)
    sys.exit(main(sys.argv[1:]))
