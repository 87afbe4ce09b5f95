"""What a checkpoint's files say of tokens: which end an answer, which are text, which are special.

    generation_config.json, config.json    eos_token_id: an id, a list of ids, or null
    tokenizer_config.json                  eos_token: a text, an object that has it, or a list

The files of one checkpoint may disagree: often only some of them were changed when the model was
trained to chat. Each of these tokens ends an answer.

A tokenizer.json has added tokens beside its vocabulary, each with a flag for special ones; other
files may mark more. The others are text, for example `<tool_call>` of many models. The engine
treats every `<...>` as special instead. So it gets the tokens' bytes to mask with, and a tokenizer
to spell with: there these tokens are added ones, which gives texts in the model's own tokens, and
special ones are not added, since they never represent text. Every id has a token in its vocabulary,
for the engine would renumber missing ones.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes.json_file import read_object

_TOKENIZER_CONFIG = "tokenizer_config.json"
_TOKENS_MAP = "special_tokens_map.json"
# Those of transformers' generate() first: they are what the model's makers say of answers.
_MODEL_CONFIGS = ("generation_config.json", "config.json")


@dataclass(frozen=True, slots=True)
class EndTokens:
    """`by_file`: the ids that each file names, without files that name none."""

    by_file: Mapping[str, tuple[int, ...]]

    @classmethod
    def read(cls, folder: Path, tokenizer_path: Path) -> "EndTokens":
        """The ends in a model's folder, and in the files beside its tokenizer.json.

        Raises ValueError with the file's path, for JSON that is none and for values that name no
        token; OSError.
        """
        named = {name: _ids_of_config(folder / name) for name in _MODEL_CONFIGS}
        named[_TOKENIZER_CONFIG] = _ids_of_tokenizer(tokenizer_path)
        return cls({name: token_ids for name, token_ids in named.items() if token_ids})

    @property
    def ids(self) -> tuple[int, ...]:
        """All of them, those of generation_config.json first."""
        return tuple(dict.fromkeys(each for ids in self.by_file.values() for each in ids))

    @property
    def contradiction(self) -> str | None:
        """What the files name, where none of them names all; None: one does."""
        if not self.by_file or max(len(set(ids)) for ids in self.by_file.values()) == len(self.ids):
            return None
        parts = [f"{name} {', '.join(map(str, ids))}" for name, ids in self.by_file.items()]
        return "; ".join(parts)


def _ids_of_config(path: Path) -> tuple[int, ...]:
    config = read_object(path)
    found: list[int] = []
    # Models with several parts have a config for each; answers are of the part for text.
    for part in (config.get("text_config"), config):
        value = part.get("eos_token_id") if isinstance(part, dict) else None
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None:
                continue
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                rule = "must be the id of a token, or a list of them"
                raise ValueError(f"{path}: eos_token_id {value!r}: {rule}")
            found.append(token_id)
    return tuple(dict.fromkeys(found))


def _ids_of_tokenizer(tokenizer_path: Path) -> tuple[int, ...]:
    """Empty also where no token has such a text: then nothing can end with it."""
    path = tokenizer_path.with_name(_TOKENIZER_CONFIG)
    named = read_object(tokenizer_path.with_name(_TOKENS_MAP)) | read_object(path)
    texts = token_texts(named.get("eos_token"))
    if texts is None:
        rule = "must be the text of a token, an object with it, or a list of them"
        raise ValueError(f"{path}: eos_token {named['eos_token']!r}: {rule}")
    if not texts:
        return ()
    try:
        known = _all_ids(read_object(tokenizer_path))
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{tokenizer_path}: its tokens are malformed: {error!r}") from error
    return tuple(known[text] for text in texts if text in known)


def token_texts(value: Any) -> Sequence[str] | None:
    """The texts of a token that a tokenizer's file names, or lists; None: it is malformed."""
    if value is None:
        return ()
    texts: list[str] = []
    for each in value if isinstance(value, list) else [value]:
        text = each.get("content") if isinstance(each, dict) else each
        if not isinstance(text, str):
            return None
        texts.append(text)
    return texts


def _all_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    vocab = tokenizer.get("model", {}).get("vocab") or {}
    if isinstance(vocab, list):  # with scores, in the order of their ids
        vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
    added = tokenizer.get("added_tokens") or []
    return {**vocab, **{token["content"]: token["id"] for token in added}}


# Begins the names of tokens for ids without one.
HOLE = "<|no token "
# Where files name special tokens, and where they list them.
_NAMES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class TextTokens:
    """What the engine needs to know of a tokenizer.

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
    steps = _steps(tokenizer.get("normalizer") or {})
    # Normalized tokens then begin with a space, which decoding adds again.
    puts_space = any(step.get("type") == "Prepend" for step in steps)
    bytes_of_texts = {
        token["id"]: b" " * (puts_space and token["normalized"]) + encode(token["content"])
        for token in texts
    }
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
    named = read_object(tokenizer_path.with_name(_TOKENS_MAP))
    return frozenset(_contents(named | read_object(tokenizer_path.with_name(_TOKENIZER_CONFIG))))


def _contents(named: Mapping[str, Any]) -> Iterator[str]:
    tokens = [named.get(f"{name}_token") for name in _NAMES]
    for key in _LISTS:
        listed = named.get(key) or []
        tokens += listed.values() if isinstance(listed, dict) else listed
    by_id = named.get("added_tokens_decoder") or {}
    tokens += [token for token in by_id.values() if token.get("special")]
    for token in tokens:
        yield from token_texts(token) or ()


def is_text(content: str, is_special: bool) -> bool:
    """Whether an added token is text.

    `<|...|>` is always special: other configuration files often mark it so.
    """
    return not (is_special or content.startswith("<|"))


def _steps(whole: dict[str, Any]) -> list[dict[str, Any]]:
    """A decoder or normalizer with its parts."""
    return [whole, *whole.get("decoders", ()), *whole.get("normalizers", ())]


def _encoding(decoder: dict[str, Any]) -> Callable[[str], bytes] | None:
    """How the vocabulary encodes bytes: by a letter for each, or with a mark for the space."""
    kinds = {step.get("type") for step in _steps(decoder)}
    if "ByteLevel" in kinds:
        byte_of = {letter: byte for byte, letter in _byte_letters().items()}
        # Decoders treat a token of such letters alone as one of the vocabulary.
        return lambda content: (
            bytes(map(byte_of.__getitem__, content))
            if byte_of.keys() >= set(content)
            else content.encode()
        )
    if "ByteFallback" in kinds:
        return lambda content: content.replace("\u2581", " ").encode()
    return None


def _byte_letters() -> dict[int, str]:
    """A letter for each byte: itself if printable, else the next unused one."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = {byte: chr(byte) for byte in shown}
    return letters | {byte: chr(256 + rank) for rank, byte in enumerate(hidden)}
