"""The best-first search by itself: against all traces of a small tree, cut and gone on with."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from router.engine.beam_search.best_first import BestFirstSearch
from router.engine.beam_search.best_words import BestGroup, BestOutcome, Ending, Node, Open
from router.engine.beam_search.types import (
    Ask,
    Beam,
    Closed,
    Dead,
    Hole,
    Place,
    Probe,
    Probed,
    Reason,
)
from router.request.errors import ConstraintRefused
from tests.byte_tokenizer import EOS_ID
from tests.router.rig import asking

LETTERS = tuple(map(ord, "abc"))
MAX_LEN = 3
HOLE = Hole(asking(max_new_tokens=MAX_LEN), is_last=True)
ROOT: tuple[Node, ...] = (Open(Beam(hole=0)),)
Found = list[tuple[tuple[int, ...], float]]


class Texts:
    """Outputs as they are; "b" ends one where `stops`."""

    def __init__(self, *, stops: bool = False) -> None:
        self._stops = stops

    def text(self, hole: Hole, output_ids: tuple[int, ...]) -> str:
        return bytes(output_ids).decode()

    def is_ended(self, hole: Hole, output_ids: tuple[int, ...]) -> bool:
        return self._stops and output_ids[-1:] == (ord("b"),)


@cache
def next_tokens(seed: int, output_ids: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """Log-probabilities of the letters and the end token, the most probable first."""
    scores = {
        token_id: crc32(f"{seed}|{output_ids}|{token_id}".encode()) % 4001 / 1000
        for token_id in (*LETTERS, EOS_ID)
    }
    total = math.log(sum(map(math.exp, scores.values())))
    shares = ((token_id, score - total) for token_id, score in scores.items())
    return tuple(sorted(shares, key=lambda pair: -pair[1]))


def told(seed: int, ask: Ask) -> Probed:
    assert isinstance(ask, Probe)
    return Probed(next_tokens(seed, ask.beam.output_ids)[: ask.num_tops], frozenset({EOS_ID}))


def told_in_any_order(seed: int, ask: Ask) -> Probed:
    """Few log-probabilities, each of several tokens, whose order depends on how many are asked."""
    assert isinstance(ask, Probe)
    shares = rounded_tokens(seed, ask.beam.output_ids)

    def order(token: tuple[int, float]) -> tuple[float, int]:
        return -token[1], crc32(f"{ask.num_tops}|{seed}|{token[0]}".encode())

    return Probed(tuple(sorted(shares, key=order)[: ask.num_tops]), frozenset({EOS_ID}))


def rounded_tokens(seed: int, output_ids: tuple[int, ...]) -> tuple[tuple[int, float], ...]:
    """As `next_tokens`, of two log-probabilities alone."""
    ids = (*LETTERS, EOS_ID)
    likely = [crc32(f"{seed}|{output_ids}|{each}".encode()) % 3 == 0 for each in ids]
    weights = [2.0 if each else 1.0 for each in likely]
    return tuple(
        (token_id, math.log(weight / sum(weights)))
        for token_id, weight in zip(ids, weights, strict=True)
    )


def carried_out(
    search: BestFirstSearch, seed: int, told: Callable[[int, Ask], Probed] = told
) -> tuple[BestOutcome, int]:
    """What comes of it, and how many next tokens were asked for."""
    asking, num_asked = search.run(), 0
    try:
        asks = next(asking)
        while True:
            num_asked += len(asks)
            asks = asking.send([told(seed, ask) for ask in asks])
    except StopIteration as stop:
        return stop.value, num_asked


def group(nodes: Sequence[Node] = ROOT, *, hole: Hole = HOLE, **given: object) -> BestGroup:
    more = {"k": 4, "width": 2, "num_tops": 4, "budget": 10**6} | given
    return BestGroup(nodes=tuple(nodes), holes=(hole,), end_token_ids=frozenset({EOS_ID}), **more)  # type: ignore[arg-type]


def spelled(places: Sequence[Place]) -> Found:
    return [(place.beam.output_ids, round(place.beam.logprob, 9)) for place in places]


def every_trace(seed: int, *, stops: bool = False) -> Found:
    """All outputs, the best first."""

    def behind(ids: tuple[int, ...], logprob: float) -> Iterator[tuple[tuple[int, ...], float]]:
        if len(ids) == MAX_LEN or Texts(stops=stops).is_ended(HOLE, ids):
            yield ids, round(logprob, 9)
            return
        for token_id, share in next_tokens(seed, ids):
            if token_id == EOS_ID:
                yield ids, round(logprob + share, 9)
            else:
                yield from behind((*ids, token_id), logprob + share)

    return sorted(behind((), 0.0), key=lambda trace: -trace[1])


def same(found: Found, expected: Found) -> bool:
    """Of equally probable ones either may come first."""
    return [logprob for _, logprob in found] == [logprob for _, logprob in expected]


seeds, few = st.integers(0, 10**6), st.integers(1, 5)


@given(seed=seeds, k=st.integers(1, 60), width=few, num_tops=few, stops=st.booleans())
def test_the_best_are_found_however_many_are_asked_at_once(
    seed: int, k: int, width: int, num_tops: int, stops: bool
) -> None:
    asked = group(k=k, width=width, num_tops=num_tops)
    outcome, _ = carried_out(BestFirstSearch(asked, Texts(stops=stops)), seed)
    assert outcome.reason is Reason.COMPLETE
    assert same(spelled(outcome.ended), every_trace(seed, stops=stops)[:k])


@given(seed=seeds, width=few, num_tops=few)
def test_equally_probable_tokens_are_looked_at_once_in_whichever_order_they_come(
    seed: int, width: int, num_tops: int
) -> None:
    asked = group(k=200, width=width, num_tops=num_tops)
    outcome, _ = carried_out(BestFirstSearch(asked, Texts()), seed, told_in_any_order)
    letters = ["".join(each) for size in range(MAX_LEN + 1) for each in product("abc", repeat=size)]
    assert sorted(Texts().text(HOLE, place.beam.output_ids) for place in outcome.ended) == sorted(
        letters
    )


@given(seed=seeds, k=few, max_open=st.integers(10, 14), num_told=few)
def test_a_search_that_is_cut_and_gone_on_with_finds_the_same(
    seed: int, k: int, max_open: int, num_told: int
) -> None:
    nodes, ended = list(ROOT), list[Place]()
    for _ in range(200):
        nodes.sort(key=lambda node: -node.logprob)
        ended.sort(key=lambda place: -place.beam.logprob)
        if not nodes or (len(ended) >= k and ended[k - 1].beam.logprob >= nodes[0].logprob):
            break
        told_of, nodes = nodes[:num_told], nodes[num_told:]
        asked = group(
            told_of,
            k=k,
            num_tops=2,
            ended=[place.beam.logprob for place in ended[:k]],
            bound=nodes[0].logprob if nodes else -math.inf,
        )
        outcome, _ = carried_out(BestFirstSearch(asked, Texts(), max_open), seed)
        ended += outcome.ended
        nodes += [each for each in outcome.left if not isinstance(each, Place)]
    assert same(spelled(ended[:k]), every_trace(seed)[:k])


@given(seed=seeds, budget=st.integers(0, 12), width=few)
def test_no_more_tokens_are_asked_for_than_may_be(seed: int, budget: int, width: int) -> None:
    asked = group(k=200, width=width, num_tops=5, budget=budget)
    outcome, num_asked = carried_out(BestFirstSearch(asked, Texts()), seed)
    assert num_asked == budget
    assert outcome.reason is Reason.BUDGET
    # What has ended is judged, and what was not looked at is told.
    assert all(isinstance(each, Open) for each in outcome.left)
    assert len(outcome.left) + len(outcome.ended) == 1 + 3 * budget


@given(seed=seeds, budget=st.integers(1, 12))
def test_a_trace_that_ended_elsewhere_is_one_of_the_best(seed: int, budget: int) -> None:
    best, second, *_ = every_trace(seed)
    outcome, num_asked = carried_out(
        BestFirstSearch(group(k=2, ended=(best[1] + 1e-3,)), Texts()), seed
    )
    _, num_alone = carried_out(BestFirstSearch(group(k=1), Texts()), seed)
    assert same(spelled(outcome.ended)[:1], [best])
    assert num_asked <= num_alone + 2
    assert second[1] <= best[1]


@given(seed=seeds)
def test_a_hole_that_ends_is_given_back_with_all_that_may_go_on(seed: int) -> None:
    middle = Hole(HOLE.request)
    outcome, _ = carried_out(BestFirstSearch(group(hole=middle), Texts()), seed)
    first, *others = outcome.left
    assert outcome.reason is Reason.HOLE
    assert outcome.ended == []
    assert isinstance(first, Place)
    assert spelled([first]) == every_trace(seed)[:1]
    assert all(_logprob(each) <= first.beam.logprob for each in others)


def _logprob(each: Node | Place) -> float:
    return each.beam.logprob if isinstance(each, Place) else each.logprob


def test_what_can_go_no_further_is_dropped_with_its_reason() -> None:
    nodes = [Open(Beam(hole=0, output_ids=(letter,), logprob=-1.0)) for letter in LETTERS]
    search = BestFirstSearch(group(nodes, width=3, k=1), Texts())
    running = search.run()
    asks = next(running)
    refused = Dead(ConstraintRefused("nothing may follow", "broken"))
    ended = Probed(((EOS_ID, -0.5),), frozenset({EOS_ID}))
    try:
        running.send([refused, ended, refused])
    except StopIteration as stop:
        outcome = stop.value
    assert len(asks) == 3
    assert [place.beam.output_ids for place, error in outcome.dropped if error] == [
        (LETTERS[0],),
        (LETTERS[2],),
    ]
    assert [place.closed for place in outcome.ended] == [Closed("b")]


def test_what_is_under_way_is_not_lost_when_a_search_breaks_off() -> None:
    texts = "".join("".join(each) for each in product("ab", repeat=2))
    nodes: list[Node] = [
        Open(Beam(hole=0, output_ids=(ord(letter),), logprob=-float(index)))
        for index, letter in enumerate(texts)
    ]
    nodes.append(Ending(Beam(hole=0, output_ids=(97, 98, 99), logprob=-99.0)))
    search = BestFirstSearch(group(nodes, width=3), Texts())
    next(search.run())
    outcome = search.outcome(Reason.CANCELLED)
    assert [each.logprob for each in outcome.left if not isinstance(each, Place)] == [
        node.logprob for node in nodes
    ]
