"""Beams on a whole server: transformers' beam search, and a search of every trace."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from client.query import beam, run_all_sync
from client.query.running.results import Result
from launcher import BUNDLED_MODEL
from tests.integration.server import RunningServer

pytestmark = pytest.mark.slow

STORY = "The old man went to the market and"
QUESTION = "Q: Where does Doric Caldman live?\nA:"


class Reference:
    """The bundled model in transformers."""

    def __init__(self) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(BUNDLED_MODEL)
        self.model: Any = AutoModelForCausalLM.from_pretrained(BUNDLED_MODEL, dtype=torch.float32)
        ids = range(len(self.tokenizer))
        self._texts = [str(self.tokenizer.decode([token_id])) for token_id in ids]

    @torch.no_grad()
    def beams(self, prompt: str, n: int, num_new: int, **options: Any) -> list[tuple[str, float]]:
        ids = self.tokenizer(prompt, return_tensors="pt").input_ids
        made = self.model.generate(
            ids,
            num_beams=n,
            num_return_sequences=n,
            do_sample=False,
            max_new_tokens=num_new,
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )
        texts = self.tokenizer.batch_decode(made.sequences[:, ids.shape[1] :], True)
        return list(zip(texts, made.sequences_scores.tolist(), strict=True))

    def fillings(self, prompt: str, words: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Every output that spells one of the words, under a mask that leaves nothing else."""
        ids = self.tokenizer(prompt).input_ids
        yield from self._spelled(ids, "", words)

    @torch.no_grad()
    def _spelled(
        self, ids: list[int], text: str, words: Sequence[str]
    ) -> Iterator[tuple[str, float]]:
        logits = self.model(torch.tensor([ids])).logits[0, -1]
        end_id = self.tokenizer.eos_token_id
        legal = [
            token_id
            for token_id, token in enumerate(self._texts)
            if token and token_id != end_id and any(w.startswith(text + token) for w in words)
        ]
        if text in words:
            legal.append(end_id)
        logprobs = torch.log_softmax(logits[legal].double(), -1).tolist()
        for token_id, logprob in zip(legal, logprobs, strict=True):
            if token_id == end_id:
                yield text, logprob
                continue
            for word, rest in self._spelled([*ids, token_id], text + self._texts[token_id], words):
                yield word, logprob + rest


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    num_threads = torch.get_num_threads()
    # Small matrices; threads that wait for each other take longer on a busy machine.
    torch.set_num_threads(1)
    yield Reference()
    torch.set_num_threads(num_threads)


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize(("prompt", "n"), [(STORY, 3), (QUESTION, 2), (QUESTION, 5)])
def test_a_hole_is_what_transformers_beam_search_writes(
    server: RunningServer,
    reference: Reference,
    prompt: str,
    n: int,
    length_penalty: float,
    early_stopping: Any,
) -> None:
    options = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    expected = reference.beams(prompt, n, 12, **options)
    results = run_all_sync(
        "f'{PROMPT}[X]'",
        {"PROMPT": prompt},
        url=server.url,
        decoder=beam(n, max_tokens=12, max_len=12, **options),
    )
    assert [result["X"] for result in results] == [text for text, _ in expected]
    if length_penalty == 0.0:
        scores = [score for _, score in expected]
        assert [result.logprob for result in results] == pytest.approx(scores, abs=1e-3)


# Few of a spelling: no more traces than a server has beams (--max-beams).
PETS, NAMES, OTHERS = [" cat", " dog"], [" Kit", " Bo"], [" pig"]
PROGRAM = f"""
"Ann has a[PET]" where PET in {PETS}
if PET == " cat":
    " named[NAME]" where NAME in {NAMES}
    return NAME
" and a[OTHER]" where OTHER in {OTHERS}
"""


def every_trace(reference: Reference) -> list[tuple[str, float]]:
    traces = []
    behind = {
        " cat": [*reference.fillings("Ann has a cat named", NAMES)],
        " dog": [*reference.fillings("Ann has a dog and a", OTHERS)],
    }
    for pet, first in reference.fillings("Ann has a", PETS):
        text = " named" if pet == " cat" else " and a"
        traces += [(f"Ann has a{pet}{text}{word}", first + lp) for word, lp in behind[pet]]
    return sorted(traces, key=lambda trace: -trace[1])


def told(results: Sequence[Result[object]]) -> list[tuple[str, float]]:
    return [(result.prompt, result.logprob) for result in results]


def same(found: Sequence[tuple[str, float]], expected: Sequence[tuple[str, float]]) -> bool:
    return [text for text, _ in found] == [text for text, _ in expected] and all(
        math.isclose(a, b, abs_tol=2e-3) for (_, a), (_, b) in zip(found, expected, strict=True)
    )


def test_a_program_with_holes_and_a_branch_is_searched_jointly(
    server: RunningServer, reference: Reference
) -> None:
    every = every_trace(reference)
    wide = run_all_sync(PROGRAM, url=server.url, decoder=beam(len(every)))
    assert same(told(wide), every)


def counted(server: RunningServer, *names: str) -> list[float]:
    """Counters of the server's own page."""
    page = server.http.get("/metrics").text
    return [
        float(re.findall(rf"^{name}(?:_total)? (.+)$", page, re.MULTILINE)[0]) for name in names
    ]


def test_a_program_of_one_hole_is_one_request_whose_forks_share_their_blocks(
    server: RunningServer,
) -> None:
    prompt = "Ann and Bob walked along the river and talked about the fish that they saw. " * 8
    names = ("tgi_request_count", "tandem_prompt_tokens", "tandem_prefix_cache_hit_tokens")
    before = counted(server, *names)
    results = run_all_sync(
        "f'{PROMPT}[X]'", {"PROMPT": prompt}, url=server.url, decoder=beam(4, max_tokens=20)
    )
    num_requests, num_sent, num_found = (
        now - then for now, then in zip(counted(server, *names), before, strict=True)
    )
    (request,) = results[0].requests
    assert num_requests == 1
    assert request.kind == "beams"
    assert request.usage.num_output_tokens == 1 + 4 * 19
    # Beside the prompt, no more than the block that is not full yet for each token.
    assert num_sent - num_found - request.usage.num_prompt_tokens <= 16 * 4 * 19
    assert counted(server, "tandem_kv_blocks_used") == [0.0]


def test_a_request_ends_where_a_program_goes_on(server: RunningServer) -> None:
    (num_before,) = counted(server, "tgi_request_count")
    results = run_all_sync(PROGRAM, url=server.url, decoder=beam(3))
    (num_after,) = counted(server, "tgi_request_count")
    requests = results[0].requests
    assert len(requests) == num_after - num_before
    # One more than there are steps at which a pet is finished.
    assert len(requests) <= 5
    assert [one.finish_reason for one in requests] == ["hole"] * (len(requests) - 1) + ["complete"]
