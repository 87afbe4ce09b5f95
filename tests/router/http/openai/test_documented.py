"""docs/openai.md has a word on every field that the routes read."""

from pathlib import Path

import pytest

from router.http.body import Schema
from router.http.openai.common import StreamOptions
from router.http.openai.schema import ChatBody, CompletionBody

PAGE = Path(__file__).parents[4] / "docs" / "openai.md"


@pytest.mark.parametrize(
    "name",
    sorted({*ChatBody.model_fields, *CompletionBody.model_fields}),
)
def test_every_field_is_documented(name: str) -> None:
    assert f"`{name}`" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize(("schema", "place"), [(StreamOptions, "stream_options")])
def test_every_option_is_documented(schema: type[Schema], place: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in schema.model_fields:
        assert f"`{place}.{name}`" in text
