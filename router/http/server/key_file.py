"""The file of API keys: a name, a digest, a share and limits of each, in TOML.

    [[keys]]
    name = "search-team"
    sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    weight = 2
    max_concurrent_requests = 16
    requests_per_minute = 600
    tokens_per_minute = 200000
    constraint_seconds_per_minute = 20

All but the first two may be absent. It holds no key, so that whoever reads it has none.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from processes.settings import BadConfig
from router.request.request import ApiKey

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_MAX_WEIGHT = 1000.0


def _name(value: Any) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError("must be a name of at most 64 letters, digits, and . _ @ -")
    return value


def _sha256(value: Any) -> bytes:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError("must be the 64 hexadecimal digits of the key's SHA-256")
    return bytes.fromhex(value)


def _weight(value: Any) -> float:
    if type(value) not in (int, float) or not 1 / _MAX_WEIGHT <= value <= _MAX_WEIGHT:
        raise ValueError(f"must be a number between {1 / _MAX_WEIGHT:g} and {_MAX_WEIGHT:g}")
    return float(value)


def _limit(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


_RULES: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "name": _name,
        "sha256": _sha256,
        "weight": _weight,
        "max_concurrent_requests": _limit,
        "requests_per_minute": _limit,
        "tokens_per_minute": _limit,
        "constraint_seconds_per_minute": _limit,
    }
)
_REQUIRED = ("name", "sha256")


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys. Raises BadConfig, with the entry, the field and its rule."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from error
    entries = document.get("keys")
    if document.keys() - {"keys"} or not isinstance(entries, list) or not entries:
        raise BadConfig(f"{path}: must be a list of [[keys]], at least one, and nothing else")
    keys = tuple(_key(f"{path}: keys[{index}]", entry) for index, entry in enumerate(entries))
    for what, values in (
        ("name", [key.name for key in keys]),
        ("sha256", [key.digest.hex() for key in keys]),
    ):
        double = next((value for value in values if values.count(value) > 1), None)
        if double is not None:
            raise BadConfig(f"{path}: two keys have the {what} {double}")
    return keys


def _key(place: str, entry: Any) -> ApiKey:
    if not isinstance(entry, dict):
        raise BadConfig(f"{place}: must be a table")
    unknown = sorted(entry.keys() - _RULES.keys())
    if unknown:
        raise BadConfig(f"{place}.{unknown[0]}: is none of {', '.join(_RULES)}")
    for name in _REQUIRED:
        if name not in entry:
            raise BadConfig(f"{place}.{name}: is missing")
    values: dict[str, Any] = {}
    for name, value in entry.items():
        try:
            values[name] = _RULES[name](value)
        except ValueError as error:
            raise BadConfig(f"{place}.{name}: {error}. Given: {str(value)[:60]!r}") from error
    digest = values.pop("sha256")
    return ApiKey(digest=digest, **values)
