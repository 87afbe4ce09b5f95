"""A file of settings in YAML: the names of flags, with dashes or underscores, and their values.

    model-id: meta-llama/Llama-3.1-8B-Instruct
    port: 8080
    api-key: [one, two]

A flag beats its variable, which beats the file, which beats the default.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

import yaml

from processes.settings import BadConfig, Kind, checked_text, sources_of

_REPEATED = (Kind.LIST, Kind.REPEATED, Kind.ARGUMENT)


def with_config_file(
    path: Path,
    settings: Iterable[Field[Any]],
    by_flag: Mapping[str, Any],
    environ: Mapping[str, str],
) -> dict[str, Any]:
    """The flags, and as flags what the file alone sets. Raises BadConfig, which names the place."""
    known = {each.name: each for each in settings}
    together = dict(by_flag)
    for key, value in _read(path).items():
        name = str(key).replace("-", "_")
        each = known.get(name)
        if each is None:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadConfig(f"{path}: there is no setting `{key}`{hint}")
        texts = _texts(f"{path}: {key}", each, value)
        if texts is not None and next(sources_of(each, by_flag, environ), None) is None:
            together[name] = texts
    return together


def _read(path: Path) -> dict[Any, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadConfig(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadConfig(f"--config {path}: is no text in UTF-8: {error}") from None
    except yaml.YAMLError as error:
        raise BadConfig(f"--config {path}: is not YAML: {error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadConfig(f"--config {path}: must hold names with values, as `port: 8080`")
    return value


def _texts(place: str, each: Field[Any], value: Any) -> str | list[str] | None:
    """A value as the command line would have it, checked; None: it says nothing."""
    kind = each.metadata["kind"]
    if value is None:
        return None
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and kind not in _REPEATED:
        raise BadConfig(f"{place}: must be one value, not a list")
    texts = [_text(place, item) for item in values]
    for text in texts:
        checked_text(each.metadata, place, text)
    return texts if kind in _REPEATED else texts[0]


def _text(place: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise BadConfig(f"{place}: must be a text, a number, true or false")
