"""What cards suggest to ask."""

from pathlib import Path

import pytest

from router.text.model_card import ExamplePrompt, example_prompts

DEMO_MODEL = Path(__file__).parents[3] / "models" / "demo"


def of_card(folder: Path, text: str) -> tuple[ExamplePrompt, ...]:
    (folder / "README.md").write_text(text, encoding="utf-8")
    return example_prompts(folder)


def test_texts_and_last_messages_are_prompts_with_their_titles(tmp_path: Path) -> None:
    card = """---
license: mit
widget:
  - text: "Who are you?"
    example_title: A question
  - messages:
      - {role: system, content: Be brief.}
      - {role: user, content: "2 + 2?"}
---
# A model
"""
    assert of_card(tmp_path, card) == (
        ExamplePrompt("A question", "Who are you?"),
        ExamplePrompt("", "2 + 2?"),
    )


@pytest.mark.parametrize(
    "card",
    [
        "# A model\n\n---\nwidget: [{text: Not of the front matter}]\n---\n",
        "---\nlicense: mit\n---\n",
        "---\nwidget: false\n---\n",
        "---\nwidget: [{src: cat.png}, a text, {text: ' '}, {messages: []}]\n---\n",
        "",
    ],
)
def test_a_card_without_prompts_suggests_nothing(tmp_path: Path, card: str) -> None:
    assert of_card(tmp_path, card) == ()


def test_no_card_suggests_nothing(tmp_path: Path) -> None:
    assert example_prompts(tmp_path) == ()


def test_a_broken_card_is_said_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert of_card(tmp_path, "---\nwidget: [\n---\n") == ()
    assert "README.md is not YAML" in caplog.text


def test_the_bundled_model_suggests_four() -> None:
    assert len(example_prompts(DEMO_MODEL)) == 4
