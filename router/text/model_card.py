"""What a model's card suggests to ask it: the `widget` of README.md's front matter.

The form is the hub's (https://huggingface.co/docs/hub/models-widgets): a list of objects, each with
`text` or `messages`, and perhaps an `example_title`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_MAX_PROMPTS = 8
_FENCE = "---\n"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExamplePrompt:
    """A prompt that the model answers well. `title` may be empty."""

    title: str
    text: str


def example_prompts(folder: Path) -> tuple[ExamplePrompt, ...]:
    """The first ones of the card in a model's folder; none where it has no card, or one that
    cannot be read, which the log says."""
    path = folder / "README.md"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        _logger.warning("%s cannot be read, so nothing is suggested to ask: %s", path, error)
        return ()
    before, _, rest = text.partition(_FENCE)
    if before:
        return ()
    try:
        front = yaml.safe_load(rest.partition("\n" + _FENCE)[0])
    except yaml.YAMLError as error:
        _logger.warning("the front matter of %s is not YAML: %s", path, error)
        return ()
    widget = front.get("widget") if isinstance(front, Mapping) else None
    found = map(_prompt, widget if isinstance(widget, list) else ())
    return tuple(prompt for prompt in found if prompt is not None)[:_MAX_PROMPTS]


def _prompt(entry: Any) -> ExamplePrompt | None:
    """An entry's prompt; None where it is of another kind, such as a picture's."""
    if not isinstance(entry, Mapping):
        return None
    text = entry.get("text")
    messages = entry.get("messages")
    if isinstance(messages, list) and messages and isinstance(messages[-1], Mapping):
        text = messages[-1].get("content")
    if not isinstance(text, str) or not text.strip():
        return None
    return ExamplePrompt(str(entry.get("example_title") or ""), text)
