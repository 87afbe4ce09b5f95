"""A real model through each API, and in the examples that ask it: SmolLM2-135M-Instruct.

What it says is written down where it is sure of it: in its own 4 bits and dequantized, on any CPU.
"""

import subprocess
import sys
from typing import Any

import anthropic
import openai
import pytest
from huggingface_hub import InferenceClient

from tests.conformance.serving import ROOT, Served, tandem_python

pytestmark = pytest.mark.nightly

QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."


@pytest.fixture
def client(real: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=real.openai_url, api_key="any", max_retries=0)


def test_tgis_client_goes_on_with_a_text(real: Served) -> None:
    where: Any = {"type": "where", "value": 'len(words(X)) <= 12 and stops_at(X, ".")'}
    text = InferenceClient(base_url=real.url).text_generation(
        "The weather in winter", max_new_tokens=60, grammar=where, return_full_text=False
    )

    assert text == " is typically much colder than in summer."


def test_a_completion_of_openais_goes_on_with_a_text(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="tgi", prompt=f"{QUESTION}\n{ANSWER}\nWhat is the capital of France?\n", stop="\n"
    )

    assert answer.choices[0].text == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (QUESTION, ANSWER),
        ("What is the capital of France?", "The capital of France is Paris."),
    ],
)
def test_a_chat_of_openais_is_answered(client: openai.OpenAI, question: str, text: str) -> None:
    answer = client.chat.completions.create(
        model="tgi", messages=[{"role": "user", "content": question}]
    )

    assert answer.model == "SmolLM2-135M-Instruct"
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"


def test_a_response_is_gone_on_from(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tgi", input=QUESTION)
    second = client.responses.create(
        model="tgi", input="And of Italy?", previous_response_id=first.id, max_output_tokens=20
    )

    assert first.output_text == ANSWER
    assert "Rome" in second.output_text


def test_anthropics_client_is_answered(real: Served) -> None:
    client = anthropic.Anthropic(base_url=real.url, api_key="any", max_retries=0)
    with client.messages.stream(
        model="tgi", max_tokens=40, messages=[{"role": "user", "content": QUESTION}]
    ) as stream:
        text = "".join(stream.text_stream)

    assert text == ANSWER


def printed(*words: str, url: str) -> list[str]:
    done = subprocess.run(
        words,
        cwd=ROOT,
        env={"TANDEM_URL": url, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_program_asks_over_lmtp(real: Served) -> None:
    lines = printed(
        *(tandem_python(), "-m", "launcher", "query", "examples/12_countries.query"), url=real.url
    )

    assert lines[:5] == [
        "The capital of France is Paris. People there speak French. France lies in Europe.",
        "The capital of Italy is Rome. People there speak Italian. Italy lies in Europe.",
        "The capital of Japan is Tokyo. People there speak Japanese. Japan lies in Asia.",
        "The capital of Egypt is Cairo. People there speak Arabic. Egypt lies in Africa.",
        "The pyramids stand in Egypt",
    ]


def test_data_are_extracted_into_objects(real: Served) -> None:
    assert printed(sys.executable, "examples/11_extract.py", url=real.url) == [
        "Person(name='John Smith', age=42, city='Berlin')",
        "Person(name='Ken', age=27, city='Osaka')",
        "Person(name='Sarah Miller', age=29, city='Chicago')",
    ]


def test_a_loop_with_tools_ends_in_an_answer(real: Served) -> None:
    assert printed(sys.executable, "examples/13_tools.py", url=real.url) == [
        "What is the weather in Paris?",
        "  get_weather({'city': 'Paris'}) -> It is sunny, with 21 degrees.",
        "  The weather in Paris is sunny with 21 degrees.",
        "How many people live in Paris?",
        "  get_population({'city': 'Paris'}) -> Paris has 2.1 million inhabitants.",
        "  Paris has 2.1 million inhabitants.",
    ]
