"""Simulated replicas compute what a step computes, and the front's policy is the one compared."""

import random
from itertools import pairwise

from bench.fleet_sim import (
    Asked,
    RoundRobin,
    SimulatedReplica,
    found_of,
    load_of,
    policies_of,
    simulate,
)


def request(prompt_len: int, output_len: int) -> Asked:
    pieces = [f"{place}".encode() for place in range(prompt_len // 64)]
    return Asked(0.0, prompt_len, output_len, pieces, pieces)


def test_what_a_replica_served_is_computed_once_and_a_token_a_step_behind_it() -> None:
    replica = SimulatedReplica()
    ends: list[float] = []
    for _ in range(2):
        asked = request(3200, 3)
        replica.queue.append(asked)
        now_s = 0.0
        ended: list[Asked] = []
        while not ended:
            took_s = replica.step_s()
            assert took_s is not None
            now_s += took_s
            ended = replica.end_step(now_s)
        assert ended == [asked]
        ends.append(now_s)
    # Two steps of the prompt, then the first token of the second one, and two more of one token.
    assert abs(ends[0] - (2 * 0.0064 + 3200 * 0.0000221 + 2 * (0.0064 + 0.000059))) < 1e-9
    # All is cached but the last token, which is computed each time.
    assert abs(ends[1] - (0.0064 + 0.0000221 + 2 * (0.0064 + 0.000059))) < 1e-9
    assert replica.step_s() is None


def test_conversations_grow_and_share_the_system_prompts_of_their_groups() -> None:
    requests = load_of(num_replicas=1, rate=10.0, num_requests=400, seed=0)
    arrivals = [asked.arrives_s for asked in requests]
    assert all(one < other for one, other in pairwise(arrivals))
    assert len({asked.pieces[0] for asked in requests}) <= 20
    assert max(len(asked.pieces) for asked in requests) > 96 + 8
    assert all(asked.all_pieces[: len(asked.pieces)] == asked.pieces for asked in requests)


def test_replicas_that_are_sent_what_they_know_answer_sooner() -> None:
    found = {}
    policies = policies_of(4, random.Random(0))
    assert isinstance(policies["round robin"], RoundRobin)
    for name, policy in policies.items():
        requests = load_of(num_replicas=4, rate=48.0, num_requests=400, seed=1)
        simulate(policy, 4, requests)
        assert all(asked.num_written == asked.output_len for asked in requests)
        found[name] = found_of(name, 4, 12.0, requests[100:])
    knowing = found["longest, else ring"]
    for other in ("round robin", "least loaded"):
        assert knowing.cached_share > found[other].cached_share + 0.05
        assert knowing.ttft_ms_p50 < found[other].ttft_ms_p50
