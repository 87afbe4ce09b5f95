"""What schemathesis is told beyond the OpenAPI document; see `test_openapi.py`.

Most of what it makes up is refused by some rule that no schema can tell (a model's name, a range, a
sum of lengths). So that answers are checked as well as refusals, the good half of the fuzzed
requests gets values within the rules. Everything else goes out as it was made up.
"""

from typing import Any

import schemathesis

from tests.conformance.fake_name import MODEL_ID

MAX_RESPONSE_S = 1.0
_NUM_TRIES = 10

# In place of whatever number there is.
_TAMED: dict[str, Any] = {
    "best_of": 1,
    "frequency_penalty": 0.5,
    "max_completion_tokens": 6,
    "max_new_tokens": 6,
    "max_output_tokens": 6,
    "max_time": 5.0,
    "max_tokens": 6,
    "min_new_tokens": 2,
    "min_p": 0.1,
    "min_tokens": 2,
    "model": MODEL_ID,
    "n": 2,
    "presence_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 5,
    "temperature": 0.7,
    "top_k": 5,
    "top_logprobs": 2,
    "top_n_tokens": 2,
    "top_p": 0.9,
    "truncate": 8,
    "typical_p": 0.9,
}
# Refused whatever their value is, or with most of them.
_UNSERVED = (
    "adapter_id",
    "documents",
    "functions",
    "function_call",
    "grammar",
    "logit_bias",
    "previous_response_id",
    "prompt_logprobs",
    "response_format",
    "stop_token_ids",
    "structured_outputs",
    "suffix",
    "tool_choice",
    "tools",
)
_MAX_TEXT_LEN = 8


def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Tame what is fuzzed and meant to be good."""
    meta = case.meta
    if meta is None or meta.phase.name.value != "fuzzing" or not meta.generation.mode.is_positive:
        return
    if isinstance(case.body, dict):
        case.body = tamed(case.body)
    for name in ("model_name",):
        if name in case.path_parameters:
            case.path_parameters = {**case.path_parameters, name: MODEL_ID}


def answers_within_a_second(context: Any, response: Any, case: Any) -> None:
    """No hang. A request that took longer is sent again: on a busy machine anything may wait."""
    elapsed_s = response.elapsed
    for _ in range(_NUM_TRIES - 1):
        if elapsed_s <= MAX_RESPONSE_S:
            return
        elapsed_s = case.call().elapsed
    assert elapsed_s <= MAX_RESPONSE_S, f"took {elapsed_s:.1f} s, {_NUM_TRIES} times"


def tamed(value: Any) -> Any:
    """The same object with values that are within the rules."""
    if isinstance(value, dict):
        return {
            key: _TAMED[key] if key in _TAMED and child is not None else tamed(child)
            for key, child in value.items()
            if key not in _UNSERVED
        }
    if isinstance(value, list):
        return [tamed(child) for child in value[:2]]
    if isinstance(value, str):
        return value[:_MAX_TEXT_LEN] or "x"
    return value


schemathesis.hook(before_call)
schemathesis.check(answers_within_a_second)
