"""What the tests of lmql ask: of lmql within a time limit, and of HTTP for the same."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

import lmql

from tests.conformance.serving import Served, post

T = TypeVar("T")

# lmql itself waits for ever where a server fails it; no test does.
LIMIT_S = 45.0


async def within(asked: Awaitable[T], limit_s: float = LIMIT_S) -> T:
    """The answer, or TimeoutError: lmql hangs."""
    return await asyncio.wait_for(asked, limit_s)


async def run(program: str, model: lmql.LLM, **given: Any) -> Any:
    """What a program returns, of its first result."""
    results = await within(lmql.run(program, model=model, **given))
    return results[0] if isinstance(results, list) and len(results) == 1 else results


def generated(served: Served, prompt: str, num_tokens: int, **parameters: Any) -> dict[str, Any]:
    """TGI's answer to a prompt, with its details: greedy unless `parameters` say else."""
    asked = {"max_new_tokens": num_tokens, "details": True, **parameters}
    answer: dict[str, Any] = post(f"{served.url}/generate", {"inputs": prompt, "parameters": asked})
    return answer


def greedy_text(served: Served, prompt: str, num_tokens: int) -> str:
    """The text that TGI's interface goes on with."""
    return str(generated(served, prompt, num_tokens)["generated_text"])


def log_probabilities(served: Served, prompt: str, continuation: str) -> list[float]:
    """Of the continuation's tokens, as TGI's interface tells them for a prompt."""
    parameters = {"decoder_input_details": True}
    whole = generated(served, prompt + continuation, 1, **parameters)["details"]["prefill"]
    num_before = len(generated(served, prompt, 1, **parameters)["details"]["prefill"])
    return [float(token["logprob"]) for token in whole[num_before:]]
