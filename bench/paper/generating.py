"""`generate()` and `score()` of the baselines: a text at a time, over Tandem's HTTP interface."""

from dataclasses import dataclass, field

import httpx
from tokenizers import Tokenizer

from bench.paper.counting import Generated, Request, ScoredOptions


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one call generated. `is_ended`: the model ended its text in it."""

    text: str
    is_ended: bool


@dataclass(slots=True)
class Generator:
    """A model as a library of the paper's time offers it. `requests` is what was asked so far."""

    client: httpx.AsyncClient
    tokenizer: Tokenizer
    requests: list[Request] = field(default_factory=list)

    async def generate(self, prompt: str, max_new_tokens: int) -> Chunk:
        """At most so many tokens behind the prompt, greedily; nothing else ends them but the end
        token."""
        parameters = {"max_new_tokens": max_new_tokens, "details": True}
        answer = await self.client.post(
            "/generate", json={"inputs": prompt, "parameters": parameters}
        )
        answer.raise_for_status()
        body = answer.json()
        output_len = body["details"]["generated_tokens"]
        self.requests.append(
            Generated(
                prompt_len=int(answer.headers["x-prompt-tokens"]),
                output_len=output_len,
                kept_len=output_len,
                chunk=max_new_tokens,
            )
        )
        return Chunk(body["generated_text"], body["details"]["finish_reason"] == "eos_token")

    async def score(self, prompt: str, continuation: str) -> float:
        """The continuation's log-probability: one call."""
        before = self.tokenizer.encode(prompt).ids
        behind = self.tokenizer.encode(continuation, add_special_tokens=False).ids
        asked = {"prompt": before + behind, "max_tokens": 0, "echo": True, "logprobs": 0}
        answer = await self.client.post("/v1/completions", json=asked)
        answer.raise_for_status()
        logprobs = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        self.requests.append(ScoredOptions(prompt_len=len(before), option_lens=(len(behind),)))
        return float(sum(logprobs[len(before) :]))
