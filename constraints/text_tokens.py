"""Added tokens that are text, for an engine that treats every `<...>` as special.

A tokenizer.json has added tokens beside its vocabulary, each with a flag for special ones; other
files may mark more. The others are text, for example `<tool_call>` of many models. The engine
decides by their spelling instead. So it gets the tokens' bytes to mask with, and a tokenizer to
spell with: there these tokens are added ones, which gives texts in the model's own tokens, and
special ones are not added, since they never represent text. Every id has a token in its vocabulary,
for the engine would renumber missing ones.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Begins the names of tokens for ids without one.
HOLE = "<|no token "
# Where files name special tokens, and where they list them.
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class TextTokens:
    """What the engine has to be told of a tokenizer.

    texts:    the added tokens that are text, and their bytes
    special:  the added tokens that are not, and ids without a token, with their names
    to_spell: the tokenizer.json to spell with
    """

    texts: Mapping[int, bytes]
    special: Mapping[int, str]
    to_spell: str


def find_texts(
    text: str,
    end_ids: Iterable[int],
    named_special: Collection[str] = (),
    num_rows: int | None = None,
) -> TextTokens | None:
    """The tokens of a tokenizer.json that the engine would take for others; None: there are none.

    None also for a format that is not supported here. End tokens and those in `named_special` are
    always special. Added tokens beyond `num_rows`, for which the model has no weights, are left
    out: it cannot draw them.
    """
    tokenizer = json.loads(text)
    vocab = tokenizer.get("model", {}).get("vocab")
    added = [
        {**token, "special": bool(token["special"]) or token["content"] in named_special}
        for token in tokenizer.get("added_tokens") or []
    ]
    drawn = [token for token in added if num_rows is None or token["id"] < num_rows]
    if len(drawn) < len(added) and isinstance(vocab, dict):
        beyond = {token["id"] for token in added if token not in drawn}
        vocab = {piece: token_id for piece, token_id in vocab.items() if token_id not in beyond}
        added = drawn
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
    bytes_of_texts: dict[int, bytes] = {}
    for token in texts:
        is_behind_space = token["normalized"] and _puts_space_in_front(
            tokenizer.get("normalizer") or {}
        )
        content = _bytes_of(token["content"], encode)
        bytes_of_texts[token["id"]] = b" " + content if is_behind_space else content
    spelled = [{**token, "special": False} for token in texts]
    # Tokens without bytes keep their ids under names that no text is split into: with spaces.
    fillers = {hole["content"]: hole["id"] for hole in _holes(vocab, spelled)}
    every = {**{token["content"]: token["id"] for token in spelled}, **vocab, **fillers}
    rewritten = {"added_tokens": spelled, "model": {**tokenizer["model"], "vocab": every}}
    special = {
        token["id"]: token["content"]
        for token in (*added, *holes)
        if token["id"] not in bytes_of_texts
    }
    return TextTokens(bytes_of_texts, special, json.dumps({**tokenizer, **rewritten}))


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


def _bytes_of(content: str, encoding: dict[int, str] | str) -> bytes:
    if isinstance(encoding, str):
        return content.replace(encoding, " ").encode()
    bytes_of_letters = {letter: byte for byte, letter in encoding.items()}
    if frozenset(content) <= bytes_of_letters.keys():
        # Decoders treat such a token as one of the vocabulary, whose letters encode bytes.
        return bytes(bytes_of_letters[letter] for letter in content)
    return content.encode()


def _byte_letters() -> dict[int, str]:
    """A letter for each byte: itself if printable, else the next unused one."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}
