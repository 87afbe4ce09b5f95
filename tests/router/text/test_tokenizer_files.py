"""What a tokenizer's folder says, and every broken one named."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.request.errors import StartupFailed
from router.text.tokenizer import Tokenizer
from tests.router.text import small_tokenizers
from tests.router.text.small_tokenizers import load

# --- what a folder says


def test_the_config_names_tokens_lengths_and_template(tmp_path: Path) -> None:
    tokenizer = load(
        tmp_path,
        eos_token={"content": "<|end|>", "lstrip": False},
        model_max_length=2048,
        chat_template="{{ messages }}",
    )
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "<|end|>")
    assert tokenizer.model_max_len == 2048
    assert tokenizer.chat_templates == {"default": "{{ messages }}"}


def test_a_list_of_ends_is_written_by_its_first_and_all_are_special(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, eos_token=["<|end|>", {"content": "fox"}], bos_token=None)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, "<|end|>")
    assert tokenizer.decode(tokenizer.encode("a fox!")) == "a !"


def test_no_limit_in_transformers_words_is_no_limit(tmp_path: Path) -> None:
    assert load(tmp_path, model_max_length=int(1e30)).model_max_len is None


def test_tokenizer_json_alone_is_enough(tmp_path: Path) -> None:
    small_tokenizers.byte_level().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_templates) == (None, None, {})
    assert tokenizer.decode(tokenizer.encode("fox")) == "fox"


def test_special_tokens_map_fills_what_the_config_leaves_open(tmp_path: Path) -> None:
    small_tokenizers.byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "special_tokens_map.json").write_text('{"eos_token": {"content": "fox"}}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.eos_token == "fox"
    assert tokenizer.decode(tokenizer.encode("a fox!")) == "a !"


CONFIG_TEMPLATE = {"chat_template": "config"}


@pytest.mark.parametrize(
    ("files", "config", "named", "expected"),
    [
        pytest.param({}, CONFIG_TEMPLATE, None, {"default": "config"}, id="config"),
        pytest.param(
            {},
            {
                "chat_template": [
                    {"name": "default", "template": "d"},
                    {"name": "rag", "template": "r"},
                ]
            },
            None,
            {"default": "d", "rag": "r"},
            id="named templates in the config",
        ),
        pytest.param(
            {"chat_template.json": '{"chat_template": "json"}'},
            CONFIG_TEMPLATE,
            None,
            {"default": "json"},
            id="chat_template.json goes before the config",
        ),
        pytest.param(
            {"chat_template.jinja": "jinja", "chat_template.json": '{"chat_template": "json"}'},
            CONFIG_TEMPLATE,
            None,
            {"default": "jinja"},
            id="chat_template.jinja goes before both",
        ),
        pytest.param(
            {"chat_template.jinja": "jinja", "additional_chat_templates/tool_use.jinja": "tools"},
            {},
            None,
            {"default": "jinja", "tool_use": "tools"},
            id="additional templates",
        ),
        pytest.param(
            {"chat_template.jinja": "jinja", "mine.json": '{"chat_template": "mine"}'},
            CONFIG_TEMPLATE,
            "mine.json",
            {"default": "mine"},
            id="a config named on purpose goes before all",
        ),
        pytest.param(
            {"chat_template.jinja": "jinja", "mine.json": "{}"},
            CONFIG_TEMPLATE,
            "mine.json",
            {"default": "jinja"},
            id="a config named on purpose without a template",
        ),
        pytest.param(
            {"chat_template.jinja": "jinja", "mine.jinja": "mine"},
            CONFIG_TEMPLATE,
            "mine.jinja",
            {"default": "mine"},
            id="a template named on purpose",
        ),
    ],
)
def test_the_chat_template_comes_from(
    tmp_path: Path,
    files: dict[str, str],
    config: dict[str, Any],
    named: str | None,
    expected: dict[str, str],
) -> None:
    small_tokenizers.save(small_tokenizers.byte_level(), tmp_path, **config)
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    tokenizer = Tokenizer.load(tmp_path, tmp_path / named if named else None)
    assert tokenizer.chat_templates == expected


# --- broken folders


def with_model(**changes: Any) -> str:
    content = json.loads(small_tokenizers.undecoded().to_str())
    content["model"] |= changes
    return json.dumps(content)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({}, ["tokenizer.json is missing", "download"], id="nothing there"),
        pytest.param(
            {"tokenizer.model": "x"},
            ["has only tokenizer.model", "save_pretrained"],
            id="sentencepiece alone",
        ),
        pytest.param({"tokenizer.json": "{"}, ["tokenizer.json", "download"], id="cut off"),
        pytest.param(
            {"tokenizer.json": '{"model": {"type": "?"}}'}, ["tokenizer.json"], id="alien"
        ),
        pytest.param(
            {"tokenizer.json": '{"model": {"type": "BPE", "vocab": {}, "merges": []}}'},
            ["tokenizer.json", "empty vocabulary"],
            id="empty",
        ),
        pytest.param(
            {"tokenizer.json": with_model(vocab={"<unk>": 0, "<s>": 4_000_000_000})},
            ["tokenizer.json", "token id 4000000000"],
            id="an id beyond reason",
        ),
        pytest.param(
            {"tokenizer.json": with_model(), "tokenizer_config.json": "{,}"},
            ["tokenizer_config.json", "not valid JSON"],
            id="config is no JSON",
        ),
        pytest.param(
            {"tokenizer.json": with_model(), "tokenizer_config.json": "[" * 100_000},
            ["tokenizer_config.json", "not valid JSON"],
            id="config without bottom",
        ),
        pytest.param(
            {"tokenizer.json": with_model(), "tokenizer_config.json": "[]"},
            ["tokenizer_config.json", "JSON object", "list"],
            id="config is no object",
        ),
        pytest.param(
            {"tokenizer.json": with_model(), "tokenizer_config.json": '{"eos_token": 2}'},
            ["tokenizer_config.json", "`eos_token`", "2"],
            id="token is no string",
        ),
        pytest.param(
            {
                "tokenizer.json": with_model(),
                "tokenizer_config.json": '{"added_tokens_decoder": {"1": {"special": 1}}}',
            },
            ["tokenizer_config.json", "`added_tokens_decoder`"],
            id="added token without content",
        ),
        pytest.param(
            {"tokenizer.json": with_model(), "tokenizer_config.json": '{"chat_template": 7}'},
            ["tokenizer_config.json", "`chat_template`"],
            id="template is no string",
        ),
    ],
)
def test_a_broken_folder_is_refused_with_the_file_and_the_reason(
    tmp_path: Path, files: dict[str, str], expected: list[str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(StartupFailed) as refused:
        Tokenizer.load(tmp_path)
    for part in [str(tmp_path), *expected]:
        assert part in str(refused.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartupFailed, match="nowhere does not exist"):
        Tokenizer.load(tmp_path / "nowhere")


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    small_tokenizers.save(small_tokenizers.byte_level(), tmp_path)
    with pytest.raises(StartupFailed, match=r"mine\.json.*is missing"):
        Tokenizer.load(tmp_path, tmp_path / "mine.json")


def test_a_template_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    small_tokenizers.save(small_tokenizers.byte_level(), tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(StartupFailed, match=r"chat_template\.jinja cannot be read"):
        Tokenizer.load(tmp_path)
