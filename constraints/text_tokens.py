"""Added tokens that are text, for an engine that treats every `<...>` as special.

A tokenizer.json has added tokens beside its vocabulary, each with a flag for special ones; other
files may mark more. The others are text, for example `<tool_call>` of many models. The engine
decides by their spelling instead. So it gets the tokenizer twice:

    to mask:   with these tokens in the vocabulary, where they are text
    to spell:  with them as added tokens, which gives texts in the model's own tokens, and without
               special tokens, which never represent text

In both every id has a token in the vocabulary: the engine would renumber missing ones.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

# Begins the names of tokens for ids without one.
HOLE = "<|no token "
# Where files name special tokens, and where they list them.
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def split(
    text: str, end_ids: Iterable[int], named_special: Collection[str] = ()
) -> tuple[str, str] | None:
    """The tokenizer.json to mask with and the one to spell with; None: both are unchanged.

    None also for a format that is not supported here. End tokens and those in `named_special` are
    always special.
    """
    tokenizer = json.loads(text)
    vocab = tokenizer.get("model", {}).get("vocab")
    added = [
        {**token, "special": bool(token["special"]) or token["content"] in named_special}
        for token in tokenizer.get("added_tokens") or []
    ]
    ends = frozenset(end_ids)
    texts = [
        token
        for token in added
        if token["id"] not in ends and is_text(token["content"], token["special"])
    ]
    if not isinstance(vocab, dict):
        return None
    holes = _holes(vocab, added)
    is_as_marked = added == tokenizer.get("added_tokens")
    if not texts and is_as_marked and not holes:
        return None
    encode = _encoding(tokenizer.get("decoder") or {})
    if encode is None:
        return None
    special = [token for token in added if token not in texts] + holes
    taken = {token["id"] for token in texts}
    kept = {piece: token_id for piece, token_id in vocab.items() if token_id not in taken}
    for token in texts:
        piece = _piece(token["content"], encode)
        if token["normalized"] and _puts_space_in_front(tokenizer.get("normalizer") or {}):
            piece = _piece(" ", encode) + piece
        if piece in kept:
            return None
        kept[piece] = token["id"]
    to_mask = _rewritten(tokenizer, kept, special)
    spelled = [{**token, "special": False} for token in texts]
    # Tokens without bytes keep their ids under names that no text is split into: with spaces.
    fillers = {hole["content"]: hole["id"] for hole in _holes(vocab, spelled)}
    to_spell = _rewritten(tokenizer, {**vocab, **fillers}, spelled)
    return json.dumps(to_mask), json.dumps(to_spell)


def _rewritten(
    tokenizer: Mapping[str, Any], vocab: Mapping[str, int], added: list[dict[str, Any]]
) -> dict[str, Any]:
    every = {**{token["content"]: token["id"] for token in added}, **vocab}
    return {**tokenizer, "added_tokens": added, "model": {**tokenizer["model"], "vocab": every}}


def _holes(vocab: Mapping[str, int], added: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Special tokens for unused ids: the engine would give them a text."""
    known = {*vocab.values(), *(token["id"] for token in added)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return [
        {"id": token_id, "content": f"{HOLE}{token_id}|>", "special": True, **flags}
        for token_id in range(max(known, default=0))
        if token_id not in known
    ]


def special_beside(tokenizer_path: Path) -> frozenset[str]:
    """Tokens that the files beside a tokenizer.json mark as special.

    Raises ValueError for a file that is no JSON, OSError.
    """
    named: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        path = tokenizer_path.with_name(name)
        if path.is_file():
            content = json.loads(path.read_text(encoding="utf-8"))
            named |= content if isinstance(content, dict) else {}
    return frozenset(_contents(named))


def _contents(named: Mapping[str, Any]) -> Iterator[str]:
    tokens = [named.get(f"{name}_token") for name in _NAMES]
    for key in _LISTS:
        listed = named.get(key) or []
        tokens += listed.values() if isinstance(listed, dict) else listed
    by_id = named.get("added_tokens_decoder") or {}
    tokens += [token for token in by_id.values() if token.get("special")]
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content


def is_text(content: str, is_special: bool) -> bool:
    """Whether an added token is text.

    `<|...|>` is always special: other configuration files often mark it so.
    """
    return not (is_special or content.startswith("<|"))


def _encoding(decoder: dict[str, Any]) -> dict[int, str] | str | None:
    """How the vocabulary encodes bytes: by a table, or with a mark for the space."""
    steps = [decoder, *decoder.get("decoders", [])]
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return _byte_letters()
    return "\u2581" if "ByteFallback" in kinds else None


def _puts_space_in_front(normalizer: dict[str, Any]) -> bool:
    """Whether normalized tokens begin with a space, which decoding adds again."""
    steps = [normalizer, *normalizer.get("normalizers", [])]
    return any(step.get("type") == "Prepend" for step in steps)


def _piece(content: str, encoding: dict[int, str] | str) -> str:
    if isinstance(encoding, str):
        return content.replace(" ", encoding)
    if frozenset(content) <= frozenset(encoding.values()):
        # Decoders treat such a token as one of the vocabulary, whose letters encode bytes.
        return content
    return "".join(encoding[byte] for byte in content.encode())


def _byte_letters() -> dict[int, str]:
    """A letter for each byte: itself if printable, else the next unused one."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}
