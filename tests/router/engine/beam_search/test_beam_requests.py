"""What a search asks, as requests."""

from proto.contract import LogprobParams
from router.engine.beam_search.requests import output_before, request_of
from router.engine.beam_search.types import Beam, CheckHole, Hole, ProbeTokens
from tests.router.rig import ANY_TEXT, asking


def test_a_closing_takes_the_last_token_again_as_the_probes_took_it() -> None:
    hole = Hole(asking(constraint=ANY_TEXT, logprobs=LogprobParams(num_top_tokens=5)))
    beam = Beam(hole=0, output_ids=(5, 6, 7))
    probe, close = request_of(ProbeTokens(beam), hole), request_of(CheckHole(beam), hole)

    assert probe.output_ids == output_before(ProbeTokens(beam)) == (5, 6, 7)
    assert close.output_ids == output_before(CheckHole(beam)) == (5, 6)
    (token_id,) = close.sampling.logit_bias
    assert (token_id, close.sampling.do_sample) == (7, False)
    # Who asks for no alternatives is given runs of forced tokens, in the model's own spelling.
    assert close.logprobs.num_top_tokens > 0
