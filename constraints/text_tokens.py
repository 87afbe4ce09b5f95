"""Added tokens that are text, for an engine that takes every `<...>` for a special one.

A tokenizer.json has its added tokens beside its vocabulary, and says of each whether it is special.
Those that are not read as what they are called: `<tool_call>` of many models is one of them. The
engine goes by their look. So it is given the same tokenizer twice:

    to mask:   with these tokens as parts of the vocabulary, where it reads them as text
    to spell:  with them as they are, for texts in the tokens that a model knows, and without the
               special ones, which text never stands for
"""

import json
from collections.abc import Iterable
from typing import Any

# Tokens that begin calls of tools are text to whoever reads an answer, whatever a file says.
CALL_MARKERS = frozenset({"[TOOL_CALLS]"})


def split(text: str, end_ids: Iterable[int]) -> tuple[str, str] | None:
    """The tokenizer.json to mask with and the one to spell with; None: both are as it is.

    None also for what this file does not know how to rewrite. Tokens that end an output are special
    in any case.
    """
    tokenizer = json.loads(text)
    vocab = tokenizer.get("model", {}).get("vocab")
    added = tokenizer.get("added_tokens") or []
    ends = frozenset(end_ids)
    texts = [
        token
        for token in added
        if token["id"] not in ends and is_text(token["content"], bool(token["special"]))
    ]
    if not texts or not isinstance(vocab, dict):
        return None
    encode = _encoding(tokenizer.get("decoder") or {})
    if encode is None:
        return None
    special = [token for token in added if token not in texts]
    taken = {token["id"] for token in texts}
    kept = {piece: token_id for piece, token_id in vocab.items() if token_id not in taken}
    for token in texts:
        piece = _piece(token["content"], encode)
        if token["normalized"] and _puts_space_in_front(tokenizer.get("normalizer") or {}):
            piece = _piece(" ", encode) + piece
        if piece in kept:
            return None
        kept[piece] = token["id"]
    to_mask = {**tokenizer, "added_tokens": special, "model": {**tokenizer["model"], "vocab": kept}}
    to_spell = {**tokenizer, "added_tokens": [{**token, "special": False} for token in texts]}
    return json.dumps(to_mask), json.dumps(to_spell)


def is_text(content: str, is_special: bool) -> bool:
    """Whether an added token is part of the text of an answer.

    `<|...|>` is special whatever a file says: configurations beside it often make it so.
    """
    return content in CALL_MARKERS or not (is_special or content.startswith("<|"))


def _encoding(decoder: dict[str, Any]) -> dict[int, str] | str | None:
    """How the vocabulary writes bytes, by a table or with a mark for the space."""
    steps = [decoder, *decoder.get("decoders", [])]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _byte_letters()
    return "\u2581" if "ByteFallback" in kinds else None


def _puts_space_in_front(normalizer: dict[str, Any]) -> bool:
    """Whether normalized tokens begin with a space, which decoding them brings back."""
    steps = [normalizer, *normalizer.get("normalizers", [])]
    return any(step.get("type") == "Prepend" for step in steps)


def _piece(content: str, encoding: dict[int, str] | str) -> str:
    if isinstance(encoding, str):
        return content.replace(" ", encoding)
    if frozenset(content) <= frozenset(encoding.values()):
        # Decoders take such a token for one of the vocabulary, whose letters stand for bytes.
        return content
    return "".join(encoding[byte] for byte in content.encode())


def _byte_letters() -> dict[int, str]:
    """A letter for each byte: itself where it can be seen, else the next one that nobody has."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}
