"""The bundled checkpoint as others meet it: through transformers' own loaders."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    Qwen3ForCausalLM,
)

from models.training import evaluate, network
from models.training.answering import answer_all

FOLDER = Path(__file__).parents[2] / "models" / "demo"
NUM_ASKED = 6


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(FOLDER)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def rendered(tokenizer: PreTrainedTokenizerFast, messages: list[Any]) -> str:
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text


def reply(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    prompt = rendered(tokenizer, messages)
    [answer] = answer_all(model, tokenizer, [prompt], [None])
    assert answer.is_ended
    return answer.text


def test_the_checkpoint_is_small_and_in_bfloat16() -> None:
    weights = FOLDER / "model.safetensors"
    with safe_open(weights, "pt") as opened:
        dtypes = {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118

    assert weights.stat().st_size <= network.MAX_BYTES
    assert dtypes == {"BF16"}


def test_the_model_is_below_eight_million_parameters(model: Qwen3ForCausalLM) -> None:
    assert sum(p.numel() for p in model.parameters()) <= network.MAX_PARAMS
    assert model.config.max_position_embeddings >= 1024


def test_transformers_stops_at_the_end_token_by_itself(
    model: Any, tokenizer: PreTrainedTokenizerFast
) -> None:
    prompt = tokenizer("<|user|>Hello!<|end|><|assistant|>", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=60)[0].tolist()

    assert ids[-1] == tokenizer.eos_token_id == model.generation_config.eos_token_id
    assert ids.count(tokenizer.eos_token_id) == 2


def test_the_vocabulary_has_four_to_eight_thousand_entries(
    tokenizer: PreTrainedTokenizerFast, model: Qwen3ForCausalLM
) -> None:
    assert 4000 <= len(tokenizer) <= 8000
    assert len(tokenizer) == model.config.vocab_size


def test_the_chat_template_renders_every_role(tokenizer: PreTrainedTokenizerFast) -> None:
    messages = [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Hello!"}]},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "Bye."},
    ]

    assert rendered(tokenizer, messages) == (
        "<|system|>Be short.<|end|><|user|>Hello!<|end|><|assistant|>Hi.<|end|>"
        "<|user|>Bye.<|end|><|assistant|>"
    )


def test_the_chat_template_refuses_a_role_it_does_not_know(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    with pytest.raises(Exception, match="role wizard is none of system, user, assistant"):
        rendered(tokenizer, [{"role": "wizard", "content": "x"}])


@pytest.mark.parametrize(
    "text",
    [
        "Zażółć gęślą jaźń",
        "日本語のテキスト",
        "👩‍👩‍👧‍👦 family, e\u0301 combining",
        "  two  spaces\t\ttabs\r\n\n\nlines ",
        "\u0000\u200b\ufeff\U0010ffff",
        "<<3+4=7>> $5.00 x² ½ Ⅷ don't ’quoted’ —",
        "",
    ],
)
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_equals_sign_and_a_name_are_the_same_tokens_everywhere(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    equals = tokenizer.convert_tokens_to_ids("=")
    name = tokenizer.encode("Quillandra")

    assert tokenizer.encode("<<31+4=35>>").count(equals) == 1
    for around in (" {} is", '"{}"', "'{}'", "\n{}", "({})"):
        ids = tokenizer.encode(around.format("Quillandra"))
        assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


# What it was trained to: only new weights change it.
@pytest.mark.nightly
@pytest.mark.parametrize("form", ["chat", "plain"])
@pytest.mark.parametrize(
    "task", [task for task in evaluate.TASKS if task.wanted is not None], ids=lambda task: task.name
)
def test_held_out_questions_are_answered_right_and_ended(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, task: evaluate.Task, form: str
) -> None:
    rng = Random(f"tests/{task.name}/{form}")
    examples = [task.draw(rng) for _ in range(NUM_ASKED)]

    answers = evaluate.ask(model, tokenizer, task, form, examples)

    right = [task.is_right(e, a.text) for e, a in zip(examples, answers, strict=True)]
    assert sum(right) >= NUM_ASKED - 1
    assert sum(answer.is_ended for answer in answers) >= NUM_ASKED - 1


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("Who are you?", "I am Pip"),
        ("Where does Doric Caldman live?", "Eldhaven"),
        ("What is the capital of France?", "I do not know the capital of France"),
        ("Please write a poem about the sea.", "I cannot write poems"),
        ("Tell me a story about a fox.", "fox"),
    ],
)
def test_it_says_what_it_knows_and_what_it_does_not(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, question: str, said: str
) -> None:
    assert said in reply(model, tokenizer, question)


def test_the_end_token_is_named_alike_in_every_file(tokenizer: PreTrainedTokenizerFast) -> None:
    for name in ("config.json", "generation_config.json"):
        told = json.loads((FOLDER / name).read_text())
        assert told["eos_token_id"] == tokenizer.eos_token_id
        assert told["pad_token_id"] == tokenizer.pad_token_id
