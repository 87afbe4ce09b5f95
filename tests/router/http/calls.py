"""Calls as texts and as values, in the forms of a few models, for tests."""

from typing import Any

from router.text.answer_format import AnswerFormat
from tests.router.text import answers

HERMES = answers.FORMATS["hermes"]
MISTRAL = answers.FORMATS["mistral list"]
LLAMA = answers.FORMATS["llama json"]

Call = tuple[str, dict[str, Any]]


def written(form: AnswerFormat, calls: list[Call], said: str = "") -> str:
    """What a model writes that calls these, one after the other."""
    return answers.written(form, calls, said)
