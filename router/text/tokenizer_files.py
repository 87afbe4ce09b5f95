"""The tokenizer's files of a model: found by the model's name, read and checked.

Everything that can be wrong with those files is found here and raised as StartupFailed, with the
file's name and what to do.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken

from constraints.special_tokens import token_texts
from processes.model_folders import HubError, find_folder
from router.request.errors import StartupFailed

_PATTERNS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template*",
    "added_tokens.json",
    # Of a model that sees.
    "config.json",
    "*processor_config.json",
)
_NAMED_TOKENS = (
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
)  # fmt: skip
_LISTED_TOKENS = ("additional_special_tokens", "extra_special_tokens")
# Larger values are how transformers writes "no limit".
_LARGEST_MODEL_MAX_LEN = 10**9


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The files' content. `added_tokens` are those named beside tokenizer.json, in id order.

    `bos_token` and `eos_token` are as templates write them: the first one of a list.
    `response_template` is transformers' description of answers, as it is in the file.
    """

    tokenizer_path: Path
    added_tokens: tuple[AddedToken, ...]
    bos_token: str | None
    eos_token: str | None
    model_max_len: int | None
    chat_templates: Mapping[str, str]
    response_template: Any = None


def find_tokenizer(name: str, revision: str | None) -> Path:
    """The folder of `name`, a local folder or a hub id. Raises StartupFailed with the reason."""
    try:
        return find_folder(name, revision, _PATTERNS, noun="tokenizer")
    except HubError as error:
        raise StartupFailed(str(error)) from error


def read_tokenizer_files(folder: Path, config_path: Path | None = None) -> TokenizerFiles:
    """Read the tokenizer's files in `folder`.

    `config_path` stands in for tokenizer_config.json (its chat template then goes before all
    others); if it ends in `.jinja` it is the chat template alone.
    """
    tokenizer_path = _tokenizer_path(folder)
    if config_path is not None and not config_path.is_file():
        raise StartupFailed(f"{config_path}, named as the tokenizer's configuration, is missing")
    stands_in = config_path is not None and config_path.suffix != ".jinja"
    path = config_path if config_path and stands_in else folder / "tokenizer_config.json"
    config = _read_json(path)
    named = _read_json(folder / "special_tokens_map.json") | config
    return TokenizerFiles(
        tokenizer_path=tokenizer_path,
        added_tokens=_added_tokens(named, path),
        bos_token=next(iter(_contents(named.get("bos_token"), "bos_token", path)), None),
        eos_token=next(iter(_contents(named.get("eos_token"), "eos_token", path)), None),
        model_max_len=_model_max_len(config.get("model_max_length")),
        chat_templates=MappingProxyType(_chat_templates(folder, config, config_path)),
        response_template=config.get("response_template"),
    )


def _tokenizer_path(folder: Path) -> Path:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path
    if not folder.is_dir():
        raise StartupFailed(f"the tokenizer's folder {folder} does not exist")
    others = [n for n in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / n).is_file()]
    if others:
        raise StartupFailed(
            f"{path} is missing; {folder} has only {', '.join(others)}. Make it once with: "
            f'python -c "from transformers import AutoTokenizer as A; p={str(folder)!r}; '
            f'A.from_pretrained(p).save_pretrained(p)"'
        )
    raise StartupFailed(
        f"{path} is missing; download it with the model, or name the folder that holds it"
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartupFailed(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; empty when there is no such file."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(_read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise StartupFailed(f"{path} is not valid JSON ({error}); download it again") from error
    if not isinstance(content, dict):
        raise StartupFailed(f"{path} must hold a JSON object, not a {type(content).__name__}")
    return content


def _contents(token: Any, key: str, path: Path) -> Sequence[str]:
    texts = token_texts(token)
    if texts is None:
        rule = "must be a string, a token object or a list of them"
        raise StartupFailed(f"{path}: `{key}` {rule}, not {token!r}")
    return texts


def _added_tokens(config: Mapping[str, Any], path: Path) -> tuple[AddedToken, ...]:
    """Tokens that transformers would add to tokenizer.json's own, or mark as special."""
    added: dict[str, AddedToken] = {}
    by_id = config.get("added_tokens_decoder") or {}
    try:
        for token_id in sorted(by_id, key=int):
            added[by_id[token_id]["content"]] = AddedToken(**by_id[token_id])
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise StartupFailed(f"{path}: `added_tokens_decoder` is malformed ({error!r})") from error
    for key, token in _special_tokens(config):
        for content in _contents(token, key, path):
            edges = token if isinstance(token, dict) else {}
            flags = {flag: bool(edges.get(flag)) for flag in ("lstrip", "rstrip", "single_word")}
            added.setdefault(content, AddedToken(content, normalized=False, **flags))
            added[content].special = True
    return tuple(added.values())


def _special_tokens(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Every (key, token) under which a config can name a special token."""
    found = [(key, config.get(key)) for key in _NAMED_TOKENS]
    for key in _LISTED_TOKENS:
        tokens = config.get(key) or []
        found += [(key, t) for t in (tokens.values() if isinstance(tokens, dict) else tokens)]
    return found


def _model_max_len(value: Any) -> int | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return int(value) if 0 < value <= _LARGEST_MODEL_MAX_LEN else None


def _chat_templates(
    folder: Path, config: Mapping[str, Any], config_path: Path | None
) -> dict[str, str]:
    """Templates by name. Whoever comes first wins: a file that was named on purpose,
    chat_template.jinja (with additional_chat_templates/), chat_template.json, the config."""
    if config_path is not None and config_path.suffix == ".jinja":
        return {"default": _read_text(config_path)}
    where = config_path or folder / "tokenizer_config.json"
    of_config = _named_templates(config.get("chat_template"), where)
    if config_path is not None and of_config:
        return of_config
    templates = {
        path.stem: _read_text(path)
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))
    }
    if (folder / "chat_template.jinja").is_file():
        templates["default"] = _read_text(folder / "chat_template.jinja")
    if templates:
        return templates
    legacy_path = folder / "chat_template.json"
    return _named_templates(_read_json(legacy_path).get("chat_template"), legacy_path) or of_config


def _named_templates(value: Any, path: Path) -> dict[str, str]:
    """`chat_template` as it is found: one text, or a list of names and texts, or a mapping."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(entry, dict) for entry in value):
        value = {entry.get("name"): entry.get("template") for entry in value}
    if not isinstance(value, dict) or not all(
        isinstance(part, str) for pair in value.items() for part in pair
    ):
        raise StartupFailed(f"{path}: `chat_template` must be a string or a list of named ones")
    return value
