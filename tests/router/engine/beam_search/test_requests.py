"""The requests of a beam search, and the texts of its outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders

from constraints.spec import ConstraintSpec, Kind
from proto.contract import LogprobParams
from router.engine.beam_search import (
    Beam,
    CheckHole,
    Hole,
    OutputTexts,
    ProbeTokens,
    output_before,
    request_of,
)
from router.request.request import Constraint, GenerateRequest
from router.text.output_text import OutputText
from router.text.token_texts import TokenText
from router.text.tokenizer import Tokenizer
from tests.byte_tokenizer import BOS_ID, EOS_ID, VOCAB_SIZE, byte_ids
from tests.fakes import FakeShard
from tests.router.engine.beam_search.beams import searching
from tests.router.rig import ANY_TEXT, asking, byte_tokenizer, routing
from tests.router.text import small_tokenizers

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
