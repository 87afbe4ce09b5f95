"""Beam searches: their steps, their asks as requests, and how they run in the batcher."""

import asyncio
import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from constraints.spec import ConstraintSpec, Kind
from proto.contract import LogprobParams
from router.engine.batcher import BatcherLimits
from router.engine.beam_search import (
    KEPT_TEXTS_PER_BEAM,
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    BeamRun,
    BeamSearch,
    CheckHole,
    DeadEnd,
    EndedHole,
    Hole,
    NextTokens,
    OutputTexts,
    Place,
    ProbeTokens,
    SearchEnd,
    SearchOutcome,
    output_before,
    request_of,
)
from router.request.errors import ConstraintRefused, FailedAlone, GenerationFailed, Unhealthy
from router.request.request import Constraint, GenerateRequest
from router.text.output_text import OutputText
from router.text.token_texts import TokenText
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, byte_ids
from tests.fakes import FakeShard
from tests.router.rig import (
    ANY_TEXT,
    PATIENT,
    QUICK,
    Rig,
    asking,
    byte_tokenizer,
    methods,
    routing,
    settled,
)
from tests.router.text import small_tokenizers


def searching(
    rig: Rig,
    request: GenerateRequest,
    width: int = 2,
    report_s: float | None = None,
    *,
    is_last: bool = True,
) -> BeamRun:
    """The search of one hole from its beginning; the caller closes it."""
    stepped = replace(
        request,
        pause_after=1,
        logprobs=LogprobParams(num_top_tokens=2 * width + 1),
    )
    group = BeamGroup(
        width=width,
        holes=(Hole(stepped, is_last),),
        beams=(Beam(hole=0),),
        end_token_ids=frozenset({EOS_ID}),
    )
    return rig.infer.search_beams(
        group, OutputTexts(byte_tokenizer(), KEPT_TEXTS_PER_BEAM * width), report_s
    )


NO_TEXT = ConstraintRefused("no completion is known to fit", "broken")
A, B, C, D = byte_ids("abcd")
# Behind any beam, the most probable first.
TOPS = ((A, -0.1), (B, -0.2), (C, -0.4), (D, -0.8))
ENDING_TOPS = ((A, -0.1), (EOS_ID, -0.15), (B, -0.2), (C, -0.4))


def searched(
    is_dead: Callable[[tuple[int, ...]], bool],
    width: int,
    *,
    is_last: bool = True,
    constraint: Constraint | None = ANY_TEXT,
    max_len: int = 2,
    num_candidates: int | None = None,
    tops: tuple[tuple[int, float], ...] = TOPS,
) -> tuple[SearchOutcome, list[Ask]]:
    """The search of a hole some of whose outputs are dead ends; and what it asked."""
    hole = Hole(asking(max_new_tokens=max_len, constraint=constraint), is_last)
    group = BeamGroup(
        width=width,
        holes=(hole,),
        beams=(Beam(hole=0),),
        end_token_ids=frozenset({EOS_ID}),
        num_candidates=num_candidates,
    )
    running = BeamSearch(group, OutputTexts(byte_tokenizer(), 4 * width)).run()
    asked: list[Ask] = []
    result: Sequence[AskResult] | None = None
    try:
        while True:
            asks = running.send(result)  # type: ignore[arg-type]
            asked += asks
            result = [answer(ask, is_dead, tops) for ask in asks]
    except StopIteration as stop:
        outcome: SearchOutcome = stop.value
    return outcome, asked


def answer(
    ask: Ask, is_dead: Callable[[tuple[int, ...]], bool], tops: tuple[tuple[int, float], ...]
) -> AskResult:
    if isinstance(ask, CheckHole):
        return EndedHole("")
    if is_dead(ask.beam.output_ids):
        return DeadEnd(NO_TEXT)
    return NextTokens(tops, frozenset({EOS_ID}))


def begin_with_a_or_b(output_ids: tuple[int, ...]) -> bool:
    return output_ids[:1] in ((A,), (B,))


@pytest.mark.parametrize("width", [1, 2])
def test_dead_ends_leave_their_places_to_what_is_less_probable(width: int) -> None:
    outcome, _ = searched(begin_with_a_or_b, width)

    assert [place.beam.output_ids for place, _ in outcome.ended] == [(C, A), (C, B)][:width]
    dropped = [(place.beam.output_ids, error) for place, error in outcome.dropped]
    assert dropped == [((A,), NO_TEXT), ((B,), NO_TEXT)]


def test_no_beam_is_asked_twice() -> None:
    _, asked = searched(begin_with_a_or_b, 2)
    probed = [ask.beam for ask in asked if isinstance(ask, ProbeTokens)]
    assert len(probed) == len(set(probed)) == 1 + 4


def test_candidates_are_as_many_without_dead_ends() -> None:
    def search(num_candidates: int) -> SearchOutcome:
        outcome, _ = searched(
            begin_with_a_or_b, 1, is_last=False, num_candidates=num_candidates, tops=ENDING_TOPS
        )
        return outcome

    few = search(1)
    more = search(2)
    assert candidate_outputs(few) == [((), True)]
    assert few.has_more
    assert candidate_outputs(more) == [((), True), ((C,), False)]
    assert not more.has_more


def candidate_outputs(outcome: SearchOutcome) -> list[tuple[tuple[int, ...], bool]]:
    assert outcome.candidates is not None
    return [(place.beam.output_ids, place.closed is not None) for place in outcome.candidates]


@pytest.mark.parametrize(
    "constraint",
    [None, Constraint(ConstraintSpec(Kind.WHERE, "len(X) < 9"), has_dead_ends=False)],
    ids=["free", "where"],
)
def test_nothing_is_asked_early_where_masks_see_all_dead_ends(
    constraint: Constraint | None,
) -> None:
    _, asked = searched(lambda output_ids: False, 2, constraint=constraint, max_len=3)
    num_probes = sum(isinstance(ask, ProbeTokens) for ask in asked)
    assert num_probes == 1 + 2 + 2


_WIDTH = 64
_NUM_TOPS = 136
_OUTPUT_LEN = 500


def test_a_step_copies_the_outputs_of_those_beams_alone_that_go_on() -> None:
    hole = Hole(asking(max_new_tokens=_OUTPUT_LEN + 9), is_last=True)
    beams = tuple(
        Beam(hole=0, output_ids=(7,) * _OUTPUT_LEN, logprob=-float(index), num_tokens=_OUTPUT_LEN)
        for index in range(_WIDTH)
    )
    group = BeamGroup(width=_WIDTH, holes=(hole,), beams=beams, end_token_ids=frozenset({EOS_ID}))
    search = BeamSearch(group, OutputTexts(byte_tokenizer(), 4))
    tops = tuple((token_id, -0.1 * token_id) for token_id in range(EOS_ID + 1, _NUM_TOPS))
    running = search.run()
    asks = next(running)

    tracemalloc.start()
    try:
        running.send([NextTokens(tops, frozenset({EOS_ID}))] * len(asks))
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(search.live) == _WIDTH
    copied_bytes = _WIDTH * _NUM_TOPS * _OUTPUT_LEN * 8
    assert most_bytes < copied_bytes / 4


BEYOND_ID = VOCAB_SIZE + 3
# Letters, whole emoji by the byte, bytes that are no characters, and what shows nothing.
SOME_BYTES = [*byte_ids("ab. \U0001f642"), 2 + 0xFF, EOS_ID, BOS_ID, BEYOND_ID]
STOPS = ["ab", "b.", ".", "a", "aab", "\U0001f642", "b\U0001f642a", "\ufffd", " ab"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tokenizer]]:
    windowed = small_tokenizers.byte_level()
    # A decoder that no table can be made for.
    windowed.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("x", 0, 0)])
    built = {"fallback": small_tokenizers.byte_fallback(), "windowed": windowed}
    loaded = {
        kind: Tokenizer.load(small_tokenizers.save(each, tmp_path_factory.mktemp(kind)))
        for kind, each in built.items()
    }
    yield loaded | {"bytes": byte_tokenizer()}
    for each in loaded.values():
        each.close()


def constrained(dropped: Sequence[str]) -> Constraint | None:
    spec = ConstraintSpec(Kind.REGEX, ".*")
    return Constraint(spec, dropped_phrases=tuple(dropped)) if dropped else None


some_requests = st.builds(
    lambda stops, keeps, dropped, skips: asking(
        max_new_tokens=99,
        stop=tuple(stops),
        keep_stop_string=keeps,
        constraint=constrained(dropped),
        skip_special_tokens=skips,
    ),
    st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
    st.booleans(),
    st.lists(st.sampled_from(STOPS), max_size=1),
    st.booleans(),
)


def grown(growth: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Outputs, each one token longer than one before it."""
    outputs: list[tuple[int, ...]] = [()]
    for parent, token_id in growth:
        outputs.append((*outputs[parent % len(outputs)], token_id))
    return outputs


def afresh(request: GenerateRequest, output_ids: Sequence[int], tokenizer: Tokenizer) -> OutputText:
    return OutputText(replace(request, output_ids=tuple(output_ids)), tokenizer)


@pytest.mark.parametrize("kind", ["bytes", "fallback", "windowed"])
@given(
    request_=some_requests,
    growth=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 520)), max_size=16)
    | st.lists(st.tuples(st.integers(0, 40), st.sampled_from(SOME_BYTES)), max_size=24),
    width=st.integers(1, 8),
)
def test_outputs_that_grow_and_fork_read_as_those_read_at_once(
    tokenizers: dict[str, Tokenizer],
    kind: str,
    request_: GenerateRequest,
    growth: list[tuple[int, int]],
    width: int,
) -> None:
    tokenizer = tokenizers[kind]
    hole = Hole(request_)
    texts = OutputTexts(tokenizer, width)
    outputs = grown(growth)
    # Twice: what grew out of an output must not have changed it.
    for output_ids in [*outputs, *outputs]:
        whole = afresh(request_, output_ids, tokenizer)
        shown = whole.text_before
        matched = whole.matched
        assert texts.shown(hole, output_ids) == shown
        assert texts.text(hole, output_ids) == shown + whole.flush()
        assert texts.is_ended(hole, output_ids) == (matched is not None)
        behind = texts.behind(hole, output_ids)
        again = afresh(request_, output_ids, tokenizer)
        assert behind.text_before == again.text_before
        assert [behind.push(each) for each in SOME_BYTES[:3]] == [
            again.push(each) for each in SOME_BYTES[:3]
        ]
        assert (behind.flush(), behind.matched) == (again.flush(), again.matched)


def test_texts_of_equal_holes_are_kept_apart() -> None:
    texts = OutputTexts(byte_tokenizer(), 4)
    request = asking(max_new_tokens=9, stop=("b",))
    other = Hole(replace(request, stop=replace(request.stop, stop_strings=("a",))))
    ab = tuple(byte_ids("ab"))
    assert texts.text(Hole(request), ab) == "ab"
    assert texts.text(other, ab) == "a"


class CountedTexts(tuple[TokenText, ...]):
    """A table of token texts that counts its lookups."""

    num_looks = 0

    def __getitem__(self, key: Any) -> Any:
        type(self).num_looks += 1
        return super().__getitem__(key)


@pytest.fixture
def counted_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = byte_tokenizer().texts
    assert texts is not None
    counted = replace(texts, shown=CountedTexts(texts.shown))
    monkeypatch.setattr(byte_tokenizer(), "texts", counted)


async def num_decoded(num_tokens: int, stop: tuple[str, ...]) -> int:
    """Tokens that are turned into text while three beams grow so long."""
    before = CountedTexts.num_looks
    async with routing(FakeShard(num_blocks=512)) as rig:
        run = searching(rig, asking(max_new_tokens=num_tokens, stop=stop), width=3, report_s=0.0)
        while await run.next() is None:
            pass
        run.close()
    return CountedTexts.num_looks - before


@pytest.mark.parametrize("stop", [(), ("never",)])
async def test_a_step_decodes_no_more_tokens_for_long_outputs_than_for_short_ones(
    stop: tuple[str, ...], counted_texts: None
) -> None:
    short, medium, long = [await num_decoded(num, stop) for num in (10, 30, 50)]
    assert 0 < medium - short == long - medium


def test_a_closing_takes_the_last_token_again_as_the_probes_took_it() -> None:
    hole = Hole(asking(constraint=ANY_TEXT, logprobs=LogprobParams(num_top_tokens=5)))
    beam = Beam(hole=0, output_ids=(5, 6, 7))
    probe = request_of(ProbeTokens(beam), hole)
    close = request_of(CheckHole(beam), hole)

    assert probe.output_ids == output_before(ProbeTokens(beam)) == (5, 6, 7)
    assert close.output_ids == output_before(CheckHole(beam)) == (5, 6)
    (token_id,) = close.sampling.logit_bias
    assert (token_id, close.sampling.do_sample) == (7, False)
    # Who asks for no alternatives is given runs of forced tokens, in the model's own spelling.
    assert close.logprobs.num_top_tokens > 0


# A router that waits long until it asks failed shards again, and far longer than a test.
SELDOM = BatcherLimits(retry_s=60.0, tick_s=60.0)


def slow_shard() -> FakeShard:
    shard = FakeShard(num_blocks=512)
    shard.faults.delay_s = 0.01
    return shard


async def ended(run: BeamRun) -> SearchOutcome:
    async with asyncio.timeout(30.0):
        while (outcome := await run.next()) is None:
            pass
    return outcome


def assert_nothing_is_left(rig: Rig) -> None:
    assert rig.batcher.num_streams == rig.batcher.admission.num_taken == 0


@pytest.mark.parametrize("max_batch_size", [8, 1], ids=["all run", "some wait"])
async def test_a_search_whose_shard_dies_for_good_ends_with_all_that_waits(
    max_batch_size: int,
) -> None:
    shard = slow_shard()
    limits = replace(SELDOM, restart_s=0.1, retry_s=0.05)
    async with routing(shard, limits=limits, max_batch_size=max_batch_size) as rig:
        run = searching(rig, asking(max_new_tokens=90), report_s=0.0)
        for _ in range(2):
            assert await run.next() is None
        await shard.stop()
        with pytest.raises(Unhealthy, match="shard 0"):
            await ended(run)
        run.close()
        assert_nothing_is_left(rig)


async def test_a_search_outlives_its_shard() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        address = f"127.0.0.1:{shard.urls[0].rpartition(':')[2]}"
        run = searching(rig, asking(max_new_tokens=9), report_s=0.0)
        for _ in range(2):
            assert await run.next() is None
        await shard.stop()
        await shard.start(address)
        outcome = await ended(run)
        run.close()
    async with routing(FakeShard(num_blocks=512)) as rig:
        undisturbed = searching(rig, asking(max_new_tokens=9), report_s=0.0)
        assert outcome.ended == (await ended(undisturbed)).ended
        undisturbed.close()


async def test_a_bug_under_a_search_ends_it_at_once() -> None:
    shard = slow_shard()
    async with routing(shard, limits=SELDOM) as rig:
        run = searching(rig, asking(max_new_tokens=90), report_s=0.0)
        assert await run.next() is None
        shard.faults.spoil = lambda response: response.ClearField("generations")
        with pytest.raises(GenerationFailed):
            await ended(run)
        shard.faults.spoil = None
        run.close()
        await settled(rig)
        assert_nothing_is_left(rig)


async def test_a_search_ends_at_its_deadline_though_a_step_hangs() -> None:
    shard = slow_shard()
    ahead_s = 0.0
    timeouts = replace(QUICK, step_s=1.0)
    async with routing(shard, timeouts=timeouts, clock=lambda: monotonic() + ahead_s) as rig:
        run = searching(rig, asking(max_new_tokens=90, deadline_s=monotonic() + 60.0), report_s=0.0)
        assert await run.next() is None
        shard.faults.hangs |= {"Prefill", "Decode"}
        ahead_s = 60.0
        assert (await ended(run)).reason is SearchEnd.DEADLINE
        shard.faults.hangs.clear()
        run.close()
        await settled(rig)
        assert_nothing_is_left(rig)


async def test_a_search_fails_with_a_step_that_the_shards_fail() -> None:
    shard = slow_shard()
    async with routing(shard) as rig:
        run = searching(rig, asking(max_new_tokens=4), report_s=0.0)
        shard.faults.fail_for_good("Prefill", grpc.StatusCode.INTERNAL, "device lost")
        with pytest.raises(FailedAlone, match="device lost"):
            await ended(run)
        run.close()
        await settled(rig)
        assert methods(shard).count("Prefill") == 3
        assert_nothing_is_left(rig)


LIMITS = BatcherLimits(max_concurrent_requests=64, retry_s=5.0, tick_s=0.02)
Found = list[tuple[Place, float]]


async def found_alone(prompt: str, width: int) -> Found:
    """What a search finds with all the blocks for itself."""
    async with routing(FakeShard(num_blocks=512), timeouts=PATIENT) as rig:
        return await found(rig, prompt, width)


async def found(rig: Rig, prompt: str, width: int, *, deadline_s: float | None = None) -> Found:
    request = asking(prompt, 8, stop=("q", "zz"), constraint=ANY_TEXT, deadline_s=deadline_s)
    run = searching(rig, request, width, report_s=0.0)
    try:
        while (outcome := await run.next()) is None:
            pass
    finally:
        run.close()
    assert outcome.reason is (SearchEnd.COMPLETE if deadline_s is None else SearchEnd.DEADLINE)
    return list(outcome.ended)


async def left(rig: Rig, prompt: str, width: int, after_s: float) -> None:
    """A search whose reader is gone after a while."""
    with suppress(TimeoutError):
        async with asyncio.timeout(after_s):
            while True:
                await found(rig, prompt, width)


@pytest.mark.parametrize("seed", range(3))
async def test_searches_that_stay_find_the_same_whatever_becomes_of_the_others(seed: int) -> None:
    dice = random.Random(seed)
    prompts = [f"story {number}" for number in range(6)]
    expected = {prompt: await found_alone(prompt, 4) for prompt in prompts}
    # A search of four alone would like 20 blocks or so.
    shard = FakeShard(num_blocks=14)
    async with routing(shard, limits=LIMITS, timeouts=PATIENT) as rig:
        leaving = [
            asyncio.ensure_future(left(rig, f"other {number}", 3, dice.uniform(0.0, 0.3)))
            for number in range(6)
        ]
        staying = [asyncio.ensure_future(found(rig, prompt, 4)) for prompt in prompts]
        late = asyncio.ensure_future(found(rig, "late", 4, deadline_s=monotonic()))
        await asyncio.sleep(dice.uniform(0.0, 0.05))
        for _ in range(2):
            shard.faults.fails.append(("Prefill", grpc.StatusCode.INTERNAL, "device lost"))
        result = await asyncio.gather(*staying)
        await asyncio.gather(late, *leaving)
        await settled(rig)
        assert not shard.faults.fails
        assert rig.batcher.num_streams == rig.batcher.admission.num_taken == 0
    assert dict(zip(prompts, result, strict=True)) == expected
