"""Every decoder of lmql, without constraints: what it makes of the model is what HTTP makes."""

import json
from pathlib import Path

import lmql
import pytest

from tests.conformance.lmql.asking import generated, greedy_text, log_probabilities, run, within
from tests.conformance.serving import Served

QUESTION = "Q: Where does Doric Caldman live?\nA:"
STORY = "Once there was a fox"


async def test_generate_is_greedy_as_over_http(served: Served, model: lmql.LLM) -> None:
    made = await within(model.generate(STORY, max_tokens=24))
    assert made == greedy_text(served, STORY, 24)


@pytest.mark.parametrize(("chunk", "num_tokens"), [(1, 20), (5, 40), (16, 90), (100, 90)])
async def test_a_text_of_many_chunks_is_the_text_of_one_request(
    served: Served, model: lmql.LLM, chunk: int, num_tokens: int
) -> None:
    bound = f"len(TOKENS(TEXT)) < {num_tokens}"
    made = await run(f'argmax(chunksize={chunk}) "{STORY}[TEXT]" where {bound}', model)
    assert made.variables["TEXT"] == greedy_text(served, STORY, num_tokens - 1)


async def test_a_hole_without_a_bound_ends_where_the_model_ends(
    served: Served, model: lmql.LLM
) -> None:
    made = await run(f'argmax "{QUESTION}[ANSWER]"'.replace("\n", "\\n"), model)
    assert made.variables["ANSWER"] == " Doric Caldman lives in Eldhaven."
    assert generated(served, QUESTION, 50)["generated_text"] == made.variables["ANSWER"]


async def test_scores_are_the_log_probabilities_over_http(served: Served, model: lmql.LLM) -> None:
    values = [" Doric", " a", "Pip"]
    scored = await within(model.score(QUESTION, values))
    for value, score in zip(values, scored.scores(), strict=True):
        expected = sum(log_probabilities(served, QUESTION, value))
        assert score == pytest.approx(expected, abs=1e-3), value
    assert scored.argmax() == " Doric"


async def test_samples_are_as_many_as_asked_for_and_within_their_tokens(
    served: Served, model: lmql.LLM
) -> None:
    program = f'sample(n=4, temperature=1.2) "{STORY}[TEXT]" where len(TOKENS(TEXT)) < 12'
    results = await run(program, model)
    texts = [result.variables["TEXT"] for result in results]
    assert len(texts) == 4
    assert len(set(texts)) > 1
    vocabulary = json.loads(Path(served.model, "tokenizer.json").read_text())["model"]["vocab"]
    for text in texts:
        # Bytes that are no character were fewer than those of what stands for them.
        spelled = "".join(model.get_tokenizer().tokenize(text.replace("\ufffd", "")))
        assert 0 < fewest_tokens(spelled, vocabulary) < 12


def fewest_tokens(spelled: str, vocabulary: dict[str, int]) -> int:
    """Of all that spell a text: a sample need not be spelled as the tokenizer would."""
    fewest = [0]
    for end in range(1, len(spelled) + 1):
        fewest.append(1 + min(fewest[i] for i in range(end) if spelled[i:end] in vocabulary))
    return fewest[-1]


@pytest.mark.parametrize("setting", ["top_p=0.5", "top_k=1", "repetition_penalty=1.3"])
async def test_a_samples_settings_are_taken(model: lmql.LLM, setting: str) -> None:
    program = f'sample(temperature=0.9, {setting}) "{STORY}[TEXT]" where len(TOKENS(TEXT)) < 10'
    assert (await run(program, model)).variables["TEXT"]


async def test_a_sample_of_the_most_probable_token_alone_is_greedy(
    served: Served, model: lmql.LLM
) -> None:
    program = f'sample(temperature=1.0, top_k=1) "{STORY}[TEXT]" where len(TOKENS(TEXT)) < 20'
    assert (await run(program, model)).variables["TEXT"] == greedy_text(served, STORY, 19)


async def test_beams_find_what_is_at_least_as_probable_as_greedy(
    served: Served, model: lmql.LLM
) -> None:
    results = await run(f'beam(n=3) "{STORY}[TEXT]" where len(TOKENS(TEXT)) < 8', model)
    best = results[0].variables["TEXT"]
    greedy = greedy_text(served, STORY, 7)
    assert len(results) == 3
    assert sum(log_probabilities(served, STORY, best)) >= (
        sum(log_probabilities(served, STORY, greedy)) - 1e-3
    )


async def test_a_query_may_begin_with_a_hole(model: lmql.LLM) -> None:
    """Its prompt is `[null]` then: the bundled model has no token that begins texts."""
    made = await run('argmax "[TEXT]" where len(TOKENS(TEXT)) < 8', model)
    assert made.variables["TEXT"]
