"""Beams against a search of the whole tree; and what becomes of branches that are dropped."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from client.calls import BeamsAnswer, BeamsCall, BeamsReport, Constraint, GenerateCall
from client.query import NotSatisfied, beam, run, run_all
from client.query.running.decoders import decoding
from client.query.running.results import Result
from tests.client.query.running.models import END, TreeModel, text_of

seeds = st.integers(0, 10**6)
WORDS = ("a", "ab", "abab", "b.", "ba", "bb")
FIVE_WORDS = ("a", "b", "ab", "ba", "aab")


class Trace(NamedTuple):
    """What a search finds: the holes' texts, log-probability and tokens."""

    texts: tuple[str, ...]
    logprob: float
    num_tokens: int


# Two holes or three: which ones depends on the first.
BRANCHING = """
"P:[X]" where X in WORDS
if "b" in X:
    " and[Y]" where Y in ["a", "b", "ab"]
    if Y == "b": "![Z]" where Z in ["ab", "a."]
else:
    " or[Y]" where Y in ["bb", "b.a"]
"""


async def searched(text: str, model: TreeModel, n: int = 4, **options: Any) -> list[Result[object]]:
    """The results of a beam search."""
    decoder = decoding("beam", (n,), options)
    names = {"WORDS": WORDS, "FIVE_WORDS": FIVE_WORDS}
    return [*await run_all(text, names, model=model, decoder=decoder)]


class Node(NamedTuple):
    """A trace under way: finished texts, the prompt and words of its hole, tokens made of it."""

    texts: tuple[str, ...]
    prompt: str
    words: tuple[str, ...]
    ids: tuple[int, ...] = ()
    logprob: float = 0.0
    num_tokens: int = 0

    @property
    def call(self) -> GenerateCall:
        return GenerateCall(prompt=self.prompt, constraint=Constraint("choice", [*self.words]))


START = Node((), "P:", WORDS)


def behind(node: Node, text: str) -> Node | Trace:
    """Where BRANCHING goes once the node's hole is this text."""
    texts, prompt = (*node.texts, text), node.prompt + text
    logprob, num_tokens = node.logprob, node.num_tokens
    if len(texts) == 1 and "b" in text:
        return Node(texts, f"{prompt} and", ("a", "b", "ab"), (), logprob, num_tokens)
    if len(texts) == 1:
        return Node(texts, f"{prompt} or", ("bb", "b.a"), (), logprob, num_tokens)
    if len(texts) == 2 and "b" in texts[0] and text == "b":
        return Node(texts, f"{prompt}!", ("ab", "a."), (), logprob, num_tokens)
    return Trace(texts, logprob, num_tokens)


def steps(model: TreeModel, node: Node) -> Iterator[Node | Trace]:
    """Where the node's next token leads."""
    for token_id, logprob in model.next_logprobs(node.call, node.ids).items():
        ids = (*node.ids, token_id)
        grown = node._replace(
            ids=ids, logprob=node.logprob + logprob, num_tokens=node.num_tokens + 1
        )
        yield behind(grown, text_of(ids)) if token_id == END else grown


def whole_tree(model: TreeModel, node: Node = START) -> Iterator[Trace]:
    for step in steps(model, node):
        yield from [step] if isinstance(step, Trace) else whole_tree(model, step)


def best(traces: Iterator[Trace], length_penalty: float = 0.0) -> list[Trace]:
    return sorted(traces, key=lambda trace: -trace.logprob / trace.num_tokens**length_penalty)


def found(results: Sequence[Result[object]]) -> list[tuple[tuple[str, ...], float]]:
    return [(tuple(map(str, r.variables.values())), round(r.logprob, 9)) for r in results]


def expected(traces: Sequence[Trace]) -> list[tuple[tuple[str, ...], float]]:
    return [(trace.texts, round(trace.logprob, 9)) for trace in traces]


def has_no_ties(traces: Sequence[Trace]) -> bool:
    """Of equally probable traces either may come first."""
    return len({round(trace.logprob, 9) for trace in traces}) == len(traces)


class TestWholeTree:
    """A beam as wide as the tree finds the best there are."""

    @settings(max_examples=25)
    @given(seed=seeds)
    async def test_wide_beams_find_all_traces_in_their_order(self, seed: int) -> None:
        model = TreeModel(seed)
        every = best(whole_tree(model))
        assume(has_no_ties(every))
        assert found(await searched(BRANCHING, model, len(every))) == expected(every)

    @settings(max_examples=15)
    @given(seed=seeds, length_penalty=st.sampled_from([-0.5, 0.5, 1.0, 2.0]))
    async def test_the_score_may_count_tokens(self, seed: int, length_penalty: float) -> None:
        model = TreeModel(seed)
        every = best(whole_tree(model), length_penalty)
        results = await searched(BRANCHING, model, len(every), length_penalty=length_penalty)
        assert found(results) == expected(every)

    @settings(max_examples=15)
    @given(seed=seeds, max_tokens=st.integers(1, 3))
    async def test_holes_without_a_condition_end_at_their_budget(
        self, seed: int, max_tokens: int
    ) -> None:
        model = TreeModel(seed)
        call = GenerateCall(prompt="Q", max_tokens=max_tokens)
        every = best(Trace((text_of(ids),), lp, len(ids)) for ids, lp in model.outputs(call))
        results = await searched('"Q[X]"', model, len(every), max_tokens=max_tokens)
        assert found(results) == expected(every)


class TestNarrowBeams:
    """Few beams, against the same search written over explicit nodes."""

    @settings(max_examples=40)
    @given(seed=seeds, n=st.integers(1, 6))
    async def test_beams_are_joint_over_holes_and_branches(self, seed: int, n: int) -> None:
        model = TreeModel(seed)
        assert found(await searched(BRANCHING, model, n)) == expected(plain_beam(model, n))

    async def test_one_beam_takes_the_best_token_each_time(self) -> None:
        for seed in range(20):
            model = TreeModel(seed)
            greedy = await run(BRANCHING, {"WORDS": WORDS}, model=model)
            assert found(await searched(BRANCHING, model, 1)) == found([greedy])


def plain_beam(model: TreeModel, n: int) -> list[Trace]:
    live, ended = [START], list[Trace]()
    while live and (len(ended) < n or live[0].logprob > ended[-1].logprob):
        further = [step for node in live for step in steps(model, node)]
        further.sort(key=lambda step: -step.logprob)
        live = []
        for rank, step in enumerate(further[: 2 * n]):
            if isinstance(step, Trace):
                ended += [step] if rank < n else []
            elif len(live) < n:
                live.append(step)
        ended = sorted(ended, key=lambda trace: -trace.logprob)[:n]
    return ended


class TestChecks:
    """What a hole's text breaks ends its trace, and the others go on."""

    async def test_traces_whose_text_fails_a_check_are_no_results(self) -> None:
        call = GenerateCall(prompt="P:", max_tokens=3)
        for seed in range(10):
            model = TreeModel(seed)
            every = [Trace((text_of(ids),), lp, len(ids)) for ids, lp in model.outputs(call)]
            odd = best(trace for trace in every if len(trace.texts[0]) % 2 == 1)
            text = '"P:[X]" where len(X) % 2 == 1'
            assert found(await searched(text, model, len(every), max_tokens=3)) == expected(odd)

    async def test_no_trace_that_keeps_its_checks_is_an_error(self) -> None:
        with pytest.raises(NotSatisfied, match=r"`X.isspace\(\)` does not hold: \[X\] is '"):
            await searched('"[X]" where X.isspace()', TreeModel(1), max_tokens=2)

    async def test_a_text_that_makes_the_next_hole_impossible_is_none(self) -> None:
        text = '"[X]" where X in ["a", "b"]\n"[Y]" where Y in ("ab" if X == "b" else [])'
        for seed in range(6):
            results = await searched(text, TreeModel(seed))
            assert {result["X"] for result in results} == {"b"}


class TestPrograms:
    """Programs without holes to search, and with distributions among them."""

    async def test_a_program_without_holes_has_one_trace(self) -> None:
        (result,) = await searched('"Hi"\nreturn "done"', TreeModel(1))
        assert (result.prompt, result.value, result.requests) == ("Hi", "done", ())

    async def test_a_distribution_is_scored_and_counts(self) -> None:
        text = '"P:[X]" where X in WORDS\n" so [D]" distribution D in ["a", "b", "ab"]'
        for seed in range(8):
            model = TreeModel(seed)
            every = []
            for ids, logprob in model.outputs(START.call):
                prompt = f"P:{text_of(ids)} so "
                scored = {value: model.scored(prompt, value).total for value in ("a", "b", "ab")}
                value = max(scored, key=scored.__getitem__)
                texts = (text_of(ids), value)
                every.append(Trace(texts, logprob + scored[value], len(ids) + 1))
            results = await searched(text, model, len(every))
            assert found(results) == expected(best(iter(every)))
            assert set(results[0].distributions["D"].plain) == {"a", "b", "ab"}


WIDTH = 4


class Watched(TreeModel):
    """Notes at each search how many tasks there are, and how many bodies have not ended."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.num_running = 0
        self.seen: list[tuple[int, int]] = []

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        self.seen.append((len(asyncio.all_tasks()), self.num_running))
        async for part in super().search(call):
            yield part


async def test_a_long_beam_search_has_a_task_for_each_live_beam() -> None:
    model = Watched(3)
    # Who ends a body waits for its last words.
    text = """
import asyncio
model.num_running += 1
try:
    for number in range(40):
        "{number}:[X]" where X in FIVE_WORDS
finally:
    await asyncio.sleep(0)
    model.num_running -= 1
"""
    num_tasks = len(asyncio.all_tasks())
    names = {"model": model, "FIVE_WORDS": FIVE_WORDS}
    results = await run_all(text, names, model=model, decoder=beam(WIDTH))

    assert len(results) == WIDTH
    assert len(model.seen) > 40
    assert max(tasks for tasks, _ in model.seen) <= num_tasks + WIDTH
    assert max(running for _, running in model.seen) <= WIDTH
    assert (len(asyncio.all_tasks()), model.num_running) == (num_tasks, 0)


@pytest.mark.parametrize("told_by", ["the planner", "the server"])
async def test_runs_end_that_came_to_an_impossible_hole(told_by: str) -> None:
    model = Watched(5)
    text = """
model.num_running += 1
try:
    "[X]-" where X in FIVE_WORDS
    "[Y]" where Y in (["a"] if X == "aab" else nothing)
    "[Z]" where Z in ["a", "b"]
finally:
    model.num_running -= 1
"""
    nothing = [] if told_by == "the planner" else ["c"]
    names = {"model": model, "FIVE_WORDS": FIVE_WORDS, "nothing": nothing}
    results = await run_all(text, names, model=model, decoder=beam(len(FIVE_WORDS)))

    assert {result["X"] for result in results} == {"aab"}
    assert model.seen[-1][1] <= 1
    assert model.num_running == 0
