"""lm-eval over HTTP and lm-eval over transformers: the same scores, document by document."""

import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest

from tests.conformance.serving import MODEL, Served

TOLERANCE = 1e-4
WINDOW_LEN = 1024

CHOICES = [
    {"question": "Where does Doric Caldman live?", "choices": ["Nelby", "Corrath", "Tarn"]},
    {"question": "Who are you?", "choices": ["I am Pip.", "I am a fox.", "I do not know."]},
    {"question": "What is the colour of snow?", "choices": ["I don't know that.", "White."]},
    {"question": "Pick the odd word out: skirt, dress, pen, jacket.", "choices": ["pen", "skirt"]},
    {"question": "Fata has 5 boxes with 9 shells in each. How many?", "choices": ["45", "14"]},
    {"question": "Grüße an Łukasz 🦊", "choices": ["日本語", "é à ü", "👩‍👩‍👧"]},
]
PASSAGES = [
    "Once there was a fox who lived in the wood.",
    "The weather was fine, and my friend went to the market with a basket of apples.",
    "Q: Who are you?\nA: I am Pip.<|end|>",
    "x",
    "Nothing of this is like what the model has read: 漢字, ñandú, \t\t and 12345678901234567890.",
    # Longer than the model's window, so that it is scored in parts.
    "Once there was a fox who lived in the wood, and the fox had a friend. " * 80,
]
OPENINGS = ["Q: Who are you?\nA:", "Once there was", "Q: Where does Doric Caldman live?\nA:"]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Three tasks on local data, one for each kind of request that lm-eval makes."""
    folder = tmp_path_factory.mktemp("tasks")

    def task(name: str, rows: list[dict[str, Any]], **config: Any) -> dict[str, Any]:
        path = folder / f"{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(path)}},
            "test_split": "test",
            **config,
        }

    return [
        task(
            "tandem_choices",
            [{**row, "answer": 0} for row in CHOICES],
            output_type="multiple_choice",
            doc_to_text="Q: {{question}}\nA:",
            doc_to_choice="{{choices}}",
            doc_to_target="answer",
            metric_list=[{"metric": "acc"}],
        ),
        task(
            "tandem_passages",
            [{"text": text} for text in PASSAGES],
            output_type="loglikelihood_rolling",
            doc_to_text="",
            doc_to_target="{{text}}",
            metric_list=[{"metric": "word_perplexity"}],
        ),
        task(
            "tandem_openings",
            [{"text": text, "answer": "."} for text in OPENINGS],
            output_type="generate_until",
            doc_to_text="{{text}}",
            doc_to_target="answer",
            generation_kwargs={"until": ["\n", "the"], "do_sample": False, "max_gen_toks": 32},
            metric_list=[{"metric": "exact_match"}],
        ),
    ]


def evaluated(
    model: str, arguments: dict[str, Any], tasks: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """What each document of each task was answered, in the documents' order."""
    found = lm_eval.simple_evaluate(
        model=model, model_args=arguments, tasks=tasks, log_samples=True, bootstrap_iters=0
    )
    assert found is not None
    return {
        name: [sample["filtered_resps"] for sample in sorted(samples, key=_place)]
        for name, samples in found["samples"].items()
    }


def _place(sample: dict[str, Any]) -> int:
    place: int = sample["doc_id"]
    return place


@pytest.fixture(scope="module")
def reference(tasks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """lm-eval's own backend: transformers, in float64.

    It has been seen to miss the exact score of a choice, -393.96862, by 7e-4 once in some runs, in
    float32 and in float64, where the server in float32 was within 2e-5 of it: hence `rel` below.
    """
    arguments = {
        "pretrained": str(MODEL),
        "dtype": "float64",
        "device": "cpu",
        "batch_size": 1,
        # Over HTTP lm-eval cuts long texts two tokens shorter, for a token that it has to ask for.
        "max_length": WINDOW_LEN - 2,
    }
    return evaluated("hf", arguments, tasks)


@pytest.fixture(scope="module", params=[1, 4], ids=["one prompt a call", "four prompts a call"])
def answered(
    request: pytest.FixtureRequest, served: Served, tasks: list[dict[str, Any]]
) -> dict[str, list[Any]]:
    """The same through the server."""
    arguments = {
        "model": served.model,
        "tokenizer": served.model,
        "base_url": f"{served.openai_url}/completions",
        "num_concurrent": 2,
        "max_retries": 1,
        "batch_size": request.param,
        "max_length": WINDOW_LEN,
    }
    return evaluated("local-completions", arguments, tasks)


def test_choices_are_scored_as_by_transformers(
    reference: dict[str, list[Any]], answered: dict[str, list[Any]]
) -> None:
    expected, found = reference["tandem_choices"], answered["tandem_choices"]
    assert len(found) == len(CHOICES)
    for ours, theirs in zip(found, expected, strict=True):
        assert _numbers(ours) == pytest.approx(_numbers(theirs), rel=4e-6, abs=TOLERANCE)
        assert [is_greedy for _, is_greedy in ours] == [is_greedy for _, is_greedy in theirs]


def test_whole_passages_are_scored_as_by_transformers(
    reference: dict[str, list[Any]], answered: dict[str, list[Any]]
) -> None:
    expected, found = reference["tandem_passages"], answered["tandem_passages"]
    assert len(found) == len(PASSAGES)
    for text, ours, theirs in zip(PASSAGES, found, expected, strict=True):
        # A sum over that many tokens gathers that much rounding.
        rounding = TOLERANCE * max(1.0, len(text) / 100)
        assert ours == pytest.approx(theirs, abs=rounding), text[:40]


def test_texts_are_generated_as_by_transformers(
    reference: dict[str, list[Any]], answered: dict[str, list[Any]]
) -> None:
    assert answered["tandem_openings"] == reference["tandem_openings"]
    assert all(text for (text,) in answered["tandem_openings"])


def _numbers(scored: list[Any]) -> list[float]:
    return [logprob for logprob, _ in scored]


def test_the_model_is_the_bundled_one(served: Served) -> None:
    assert Path(served.model) == MODEL
