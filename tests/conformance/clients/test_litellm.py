"""LiteLLM, which fails over to a model with a larger context where it knows the error."""

import os
from typing import Any

import pytest

from tests.conformance.serving import Fake

# Else it asks for prices on the network when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

LONG = [{"role": "user", "content": "word " * 4000}]
SHORT = [{"role": "user", "content": "hi"}]


def ask(fake: Fake, provider: str, **fields: Any) -> Any:
    api_base = fake.url if provider == "anthropic" else fake.openai_url
    return litellm.completion(
        model=f"{provider}/{fake.model}",
        api_base=api_base,
        api_key="any",
        num_retries=0,
        max_retries=0,
        **fields,
    )


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
@pytest.mark.parametrize(
    "fields",
    [
        {"messages": LONG, "max_tokens": 5},
        {"messages": SHORT, "max_tokens": 100_000},
        {"messages": LONG, "max_tokens": 5, "stream": True},
    ],
    ids=["prompt", "sum", "stream"],
)
def test_a_context_that_is_too_small_is_known(
    fake: Fake, provider: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        ask(fake, provider, **fields)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_what_fits_is_answered(fake: Fake, provider: str) -> None:
    answer = ask(fake, provider, messages=SHORT, max_tokens=5)

    assert len(answer.choices[0].message.content) == 5
