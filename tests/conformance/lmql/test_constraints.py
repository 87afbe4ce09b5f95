"""lmql's masks, which reach the server as biases for thousands of tokens."""

import lmql
import pytest

from tests.conformance.lmql.asking import generated, greedy_text, run
from tests.conformance.serving import Served

STORY = "Once there was a fox"
QUESTION = "Q: Who are you?\\nA:"


@pytest.mark.parametrize("decoder", ["argmax", "sample(temperature=1.5)", "beam(n=2)"])
@pytest.mark.parametrize("options", [["cat", "dog"], ["a heron", "a hen", "the heron", "it"]])
async def test_a_hole_takes_one_of_its_options(
    model: lmql.LLM, decoder: str, options: list[str]
) -> None:
    made = await run(f'{decoder} "It is [X]. So" where X in {options}', model)
    for result in made if isinstance(made, list) else [made]:
        assert result.variables["X"] in options
        assert result.prompt == f"It is {result.variables['X']}. So"


async def test_the_option_is_the_one_that_the_model_prefers(
    served: Served, model: lmql.LLM
) -> None:
    made = await run(
        'argmax "Q: Where does Doric Caldman live?\\nA: Doric Caldman lives in [TOWN]." '
        'where TOWN in ["Bramdale", "Eldhaven", "Corwick"]',
        model,
    )
    assert made.variables["TOWN"] == "Eldhaven"


@pytest.mark.parametrize(("operator", "kept"), [("STOPS_AT", "."), ("STOPS_BEFORE", "")])
async def test_a_stop_phrase_ends_a_hole(
    served: Served, model: lmql.LLM, operator: str, kept: str
) -> None:
    made = await run(f'argmax "{STORY}[TEXT] Then" where {operator}(TEXT, ".")', model)
    before, _, _ = greedy_text(served, STORY, 60).partition(".")
    assert made.variables["TEXT"] == before + kept
    assert made.prompt == f"{STORY}{before}{kept} Then"


async def test_a_text_avoids_what_it_must_not_contain(served: Served, model: lmql.LLM) -> None:
    free = greedy_text(served, STORY, 20)
    assert "e" in free
    made = await run(
        f'argmax "{STORY}[TEXT]" where not "e" in TEXT and len(TOKENS(TEXT)) < 20', model
    )
    assert "e" not in made.variables["TEXT"]
    assert made.variables["TEXT"]


async def test_a_mask_means_the_same_as_a_bias_over_http(served: Served, model: lmql.LLM) -> None:
    """lmql's mask of one step: two ids allowed, by +100 each."""
    made = await run('argmax "The fox is [X]" where X in ["red", "blue"]', model)
    choice = {"grammar": {"type": "regex", "value": "red|blue"}}
    assert made.variables["X"] == generated(served, "The fox is ", 8, **choice)["generated_text"]


async def test_an_integer_is_digits(model: lmql.LLM) -> None:
    made = await run('argmax "Q: What is 3+4?\\nA: It is 3+4=<<3+4=[X]" where INT(X)', model)
    assert made.variables["X"] == 7


async def test_words_and_characters_are_bounded(model: lmql.LLM) -> None:
    made = await run(f'argmax "{STORY}[TEXT]" where len(TEXT) < 30', model)
    assert 0 < len(made.variables["TEXT"]) < 30


async def test_a_regular_expression_holds(model: lmql.LLM) -> None:
    made = await run(
        'argmax "Today is [X]" where REGEX(X, r"[0-3][0-9]/[0-3][0-9]/19[0-9][0-9]")', model
    )
    day, month, year = made.variables["X"].split("/")
    assert (len(day), len(month), year[:2], len(year)) == (2, 2, "19", 4)


async def test_a_minimum_of_tokens_keeps_the_end_away(served: Served, model: lmql.LLM) -> None:
    whole = generated(served, QUESTION.replace("\\n", "\n"), 100)["details"]["generated_tokens"]
    made = await run(
        f'argmax "{QUESTION}[X]" where len(TOKENS(X)) > {whole + 10} '
        f"and len(TOKENS(X)) < {whole + 20}",
        model,
    )
    assert len(model.get_tokenizer().tokenize(made.variables["X"])) >= whole + 5
