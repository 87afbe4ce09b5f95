"""Queries against a whole server: one request for each hole, batches, and conditions that hold."""

import asyncio
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from client.lmtp.model import LmtpModel
from client.query import (
    NotSatisfied,
    Unsatisfiable,
    model,
    run,
    run_all_sync,
    run_sync,
    sample,
)
from client.query.api import RunOptions
from client.query.reading.reader import read
from tests.client.query.conditions.clauses import random_program
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

READING = Path(__file__).parents[1] / "client" / "query" / "reading"
PAPER = yaml.safe_load((READING / "programs" / "paper.yaml").read_text())
ODD_ONE_OUT = """
argmax
    "Q: Pick the odd word out: {', '.join(WORDS)}.\\nA:[REASONING] So the odd one is[RESULT]"
where
    stops_before(REASONING, " So the odd one") and not "\\n" in REASONING
distribute
    RESULT over [f" {word}" for word in WORDS]
"""


def metric(server: RunningServer, name: str) -> float:
    text = server.http.get("/metrics").text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.M)
    assert found is not None, name
    return float(found[1])


def num_requests(server: RunningServer) -> float:
    return metric(server, "tgi_request_count_total")


def test_a_hole_is_one_request_whatever_its_length(server: RunningServer) -> None:
    before = num_requests(server)

    result = run_sync(
        '"Q: Tell me a story about a fox.\\nA:[STORY]"\n'
        '"\\nQ: Where does Doric Caldman live?\\nA:[TOWN] And that is all."\n'
        "where len(words(STORY)) == 60 and len(words(TOWN)) < 9",
        url=server.url,
    )

    assert num_requests(server) - before == 2
    assert [request.hole for request in result.requests] == ["STORY", "TOWN"]
    assert len(str(result["STORY"]).split()) == 60
    assert result.usage.num_output_tokens > 60


def test_a_distribution_scores_its_whole_support_in_one_request(server: RunningServer) -> None:
    result = run_sync(ODD_ONE_OUT, {"WORDS": ["skirt", "pear", "dress", "jacket"]}, url=server.url)

    assert result["RESULT"] == " pear"
    assert set(result.distributions["RESULT"].plain) == {" skirt", " pear", " dress", " jacket"}
    assert [request.kind for request in result.requests] == ["generate", "score"]


def test_a_later_hole_computes_its_new_tokens_only(server: RunningServer) -> None:
    result = run_sync(
        '"Q: Tell me a story about a goat.\\nA:[STORY]\\nQ: Who are you?\\nA:[NAME]"',
        url=server.url,
    )

    usage = result.requests[1].usage
    assert usage.num_cached_tokens > usage.num_prompt_tokens - 32


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in PAPER])
def test_the_papers_programs_run(server: RunningServer, case: dict[str, Any]) -> None:
    program = read(case["program"], namespace=case.get("namespace"))
    # What it draws depends on the seed alone.
    # "tgi" stands for whatever is served; the paper names models of its time.
    here: RunOptions = {"model": model("tgi", url=server.url)}
    if case["decoder"].startswith("sample"):
        here["decoder"] = sample(seed=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results = run_all_sync(program, **here)

    assert all(program.hole_names >= set(result.variables) > set() for result in results)
    assert all(result.prompt for result in results)


def test_a_contradiction_that_only_the_server_sees_points_at_the_hole(
    server: RunningServer,
) -> None:
    with pytest.raises(Unsatisfiable) as caught:
        run_sync(
            '"Say:[X]" where regex(X, "[a-z]+[0-9]") and regex(X, "[0-9][a-z]+")', url=server.url
        )

    assert str(caught.value).splitlines()[2].startswith("         ^^^")


def test_a_refused_text_is_left_out_when_its_hole_is_asked_again(server: RunningServer) -> None:
    tried: list[str] = []

    def is_long(text: str) -> bool:
        tried.append(text)
        return len(text) > 5

    result = run_sync(
        '"A fox eats[X]." where regex(X, " (mice|hay|berries)") and is_long(X)',
        {"is_long": is_long},
        url=server.url,
    )

    assert result["X"] == " berries"
    assert [request.hole for request in result.requests] == ["X"] * len(tried)
    assert len(set(tried)) == len(tried)


async def test_samples_of_a_seed_are_the_same_whoever_else_is_served(
    server: RunningServer,
) -> None:
    text = 'sample(n=3, temperature=0.9, seed=11)\n    "Once there was[X]" where len(words(X)) == 9'
    first = await run(text.replace("n=3", "n=1"), url=server.url)
    again = await asyncio.gather(*(run(text, url=server.url) for _ in range(4)))

    assert {result["X"] for result in again} == {first["X"]}


async def test_parallel_programs_are_batched(server: RunningServer) -> None:
    text = '"Q: Tell me a story about a {animal}.\\nA:[X]" where len(words(X)) == 30'
    animals = ["fox", "owl", "goat", "bear", "duck", "swan", "crow", "frog"]
    steps = 'tgi_batch_inference_count_total{method="decode"}'
    before = metric(server, steps)

    async with LmtpModel(server.url) as connected:
        results = await asyncio.gather(
            *(run(text, {"animal": animal}, model=connected) for animal in animals)
        )

    num_tokens = sum(result.usage.num_output_tokens for result in results)
    assert metric(server, steps) - before < num_tokens / 2


async def test_a_cancelled_program_that_catches_everything_leaves_nothing_on_either_side(
    server: RunningServer,
) -> None:
    text = """
while True:
    try:
        "Once upon a time[X]" where len(words(X)) > 300
    except:
        pass
    finally:
        "And then[Y]" where len(words(Y)) > 300
"""
    num_tasks = len(asyncio.all_tasks())
    async with LmtpModel(server.url) as served:
        running = asyncio.create_task(run(text, model=served))
        await _until_running(server, 1)
        running.cancel()
        with (
            pytest.raises(asyncio.CancelledError),
            pytest.warns(RuntimeWarning, match="is broken off"),
        ):
            await running
        await _until_running(server, 0)

    assert len(asyncio.all_tasks()) == num_tasks


async def _until_running(server: RunningServer, num_requests: int) -> None:
    async with asyncio.timeout(20):
        while metric(server, "tgi_batch_current_size") != num_requests:
            await asyncio.sleep(0.02)


def value_of(server: RunningServer, hole: str, where: str, **names: object) -> object:
    """What X is after one sampled run."""
    sampled = "sample(temperature=1.5, seed=3, max_tokens=24)"
    program = f'{sampled}\n    "The cat and the dog: {hole}"\nwhere\n    {where}\n'
    return run_sync(program, names, model=server.url)["X"]


# LMQL 0.7.3 answers the first five with texts that break them.
@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ('"to" in X and len(TOKENS(X)) < 8', lambda text: "to" in text),
        ('X in ["aa", "bb"] and not X in ["aa"]', lambda text: text == "bb"),
        ('not REGEX(X, "[a-z]+") and len(TOKENS(X)) < 5', lambda text: not text.isalpha()),
        (
            'REGEX(X, "(aa|bb)+") and len(X) < 5 and len(X) > 3',
            lambda text: text in ("aaaa", "aabb", "bbaa", "bbbb"),
        ),
        (
            "len(X) > 20 and len(words(X)) == 3",
            lambda text: len(text) > 20 and len(text.split()) == 3,
        ),
        ('STOPS_AT(X, ".")', lambda text: "." not in text[:-1]),
        ('STOPS_BEFORE(X, "a")', lambda text: "a" not in text),
        (
            'stops_at(X, "e") and stops_before(X, "o", "a")',
            lambda text: "e" not in text[:-1] and not {"o", "a"} & set(text),
        ),
        (
            "X.count('e') % 2 == 0 and len(X) < 9",
            lambda text: text.count("e") % 2 == 0 and len(text) < 9,
        ),
        (
            '"fox" in X.lower() and X.lower().startswith("a") and "e" not in X.lower()',
            lambda text: "fox" in text.lower() and text[0] in "aA" and "e" not in text.lower(),
        ),
    ],
)
def test_what_comes_satisfies(server: RunningServer, where: str, holds: object) -> None:
    assert callable(holds)
    assert holds(value_of(server, "[X]", where))


def test_what_nothing_satisfies_is_told(server: RunningServer) -> None:
    with pytest.raises(Unsatisfiable, match="satisfies both"):
        value_of(server, "[X]", "len(TOKENS(X)) < 3 and len(TOKENS(X)) > 5")
    with pytest.raises(Unsatisfiable):
        value_of(server, "[X]", 'REGEX(X, "a+") and "b" in X')


@dataclass
class Cat:
    name: str
    age: int | None


@pytest.mark.parametrize(
    ("hole", "where", "kind"),
    [
        ("[X: int]", "10 <= X < 20 and X % 2 == 0", int),
        ("[X: float]", "0.25 <= X <= 0.5", float),
        ("[X: bool]", "not X", bool),
        ("[X: kinds]", "X != 'cat'", str),
        ("[X: Cat]", "len(tokens(X)) < 24 and len(X.name) < 40", Cat),
        ("[X]", "type(X) is int and X > 1000", int),
    ],
)
def test_holes_have_types(server: RunningServer, hole: str, where: str, kind: type) -> None:
    made = value_of(server, hole, where, Cat=Cat, kinds=["cat", "dog"])

    assert type(made) is kind
    assert (
        kind is not int or made in (10, 12, 14, 16, 18) or (isinstance(made, int) and made > 1000)
    )
    assert kind is not float or (isinstance(made, float) and 0.25 <= made <= 0.5)
    assert kind is not str or made == "dog"


def test_random_programs_keep_their_conditions(server: RunningServer) -> None:
    num_finished = 0
    for seed in range(5000, 5006):
        program = random_program(Random(seed))
        if "tokens(" in program.text:
            continue
        try:
            result = run_sync(program.text, model=server.url)
        except (Unsatisfiable, NotSatisfied):
            continue
        texts = {span.hole: result.prompt[span.start : span.end] for span in result.spans}
        assert program.broken(texts) == [], program.text
        num_finished += 1
    assert num_finished > 2


def test_lengths_that_sum_up_over_holes_take_one_request_for_each(server: RunningServer) -> None:
    text = 'argmax\n    "A fox[A] and a goat[B]."\nwhere len(B) == 9 - len(A) and 4 < len(A) <= 9'
    result = run_sync(text, model=server.url)

    lengths = [len(str(result[name])) for name in "AB"]
    assert (sum(lengths), lengths[0] > 4) == (9, True)
    assert [row.hole for row in result.requests] == ["A", "B"]


@pytest.mark.parametrize(
    "text",
    [
        '"[X]"',
        '"{str()}[X]" where len(X) < 9',
        'beam(2)\n    "[X]" where len(X) < 9',
        '"[X]"\ndistribute X over ["a", "b"]',
    ],
)
def test_a_program_may_begin_with_a_hole(server: RunningServer, text: str) -> None:
    """The bundled model has no token that begins texts: it goes on behind one that ends them."""
    result = run_sync(text, model=server.url)

    assert result["X"]


@pytest.mark.parametrize("stops", ["cut", "exact"])
def test_a_dropped_phrase_is_among_the_tokens_of_its_hole(
    server: RunningServer, stops: str
) -> None:
    """A hole's tokens are what the model wrote, now and for the holes behind it."""
    result = run_sync(
        f'argmax(stops="{stops}")\n'
        '    "Q: Where does Doric Caldman live?\\nA:[X]" where stops_before(X, "lives in")\n'
        '    "[Y]" where len(tokens(Y)) == len(tokens(X))',
        model=server.url,
    )

    assert result["X"] == " Doric Caldman "
    written = result.requests[0].usage.num_output_tokens
    assert len(" Doric Caldman ".split()) < 4 < written
    assert result.requests[1].usage.num_output_tokens in (written, written + 1)
