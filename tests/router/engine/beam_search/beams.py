"""Searches over a router without HTTP, for tests."""

from dataclasses import replace

from proto.contract import LogprobParams
from router.engine.beam_search import (
    KEPT_TEXTS_PER_BEAM,
    Beam,
    BeamGroup,
    BeamRun,
    Hole,
    OutputTexts,
)
from router.request.request import GenerateRequest
from tests.byte_tokenizer import EOS_ID
from tests.router.rig import Rig, byte_tokenizer


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
