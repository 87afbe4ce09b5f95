"""What a step of a wide search costs the router, whose other streams wait for it."""

import tracemalloc

from router.engine.beam_search.requests import OutputTexts
from router.engine.beam_search.search import BeamSearch
from router.engine.beam_search.types import Beam, BeamGroup, Hole, NextTokens
from tests.byte_tokenizer import EOS_ID
from tests.router.rig import asking, byte_tokenizer

_WIDTH, _NUM_TOPS, _OUTPUT_LEN = 64, 136, 500


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
