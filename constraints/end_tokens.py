"""The tokens that end an answer, as a checkpoint's files name them.

    generation_config.json, config.json    eos_token_id: an id, a list of ids, or null
    tokenizer_config.json                  eos_token: a text, an object that has it, or a list

The files of one checkpoint may disagree: often only some of them were changed when the model was
trained to chat. Each of these tokens ends an answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes.json_file import read_object

_TOKENIZER_CONFIG = "tokenizer_config.json"
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
    config = read_object(path)
    named = read_object(tokenizer_path.with_name("special_tokens_map.json")) | config
    texts = token_texts(named.get("eos_token"))
    if texts is None:
        rule = "must be the text of a token, an object with it, or a list of them"
        raise ValueError(f"{path}: eos_token {named['eos_token']!r}: {rule}")
    if not texts:
        return ()
    try:
        known = _added_ids(config)
        if not known.keys() >= set(texts):
            known = _all_ids(read_object(tokenizer_path)) | known
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: its tokens are malformed: {error!r}") from error
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


def _added_ids(config: Mapping[str, Any]) -> dict[str, int]:
    """Of the tokens that tokenizer_config.json repeats: reading tokenizer.json takes longer."""
    by_id = config.get("added_tokens_decoder") or {}
    return {token["content"]: int(token_id) for token_id, token in by_id.items()}


def _all_ids(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    vocab = tokenizer.get("model", {}).get("vocab") or {}
    if isinstance(vocab, list):  # with scores, in the order of their ids
        vocab = {piece: token_id for token_id, (piece, _) in enumerate(vocab)}
    added = tokenizer.get("added_tokens") or []
    return {**vocab, **{token["content"]: token["id"] for token in added}}
