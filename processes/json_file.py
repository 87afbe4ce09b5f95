"""A JSON object in a file, as checkpoints have them; `read_object` is for all tiers."""

import json
from pathlib import Path
from typing import Any


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty without the file. Raises ValueError, OSError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: is no JSON object")
    return content
