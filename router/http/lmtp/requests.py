"""GENERATE's fields in the words of `router/request/parameters.py`."""

from dataclasses import replace

from router.http.lmtp.prompts import Prompt
from router.http.lmtp.schema import GenerateBody
from router.http.request_validator import normalize
from router.request.validation import Limits, RawParams

# The default of LMQL's own server for a request without a number.
_DEFAULT_TOKENS = 32
MAX_TOP_LOGPROBS = 256
MAX_STOPS = 64

_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_n_tokens": "top_logprobs",
    "grammar": "constraint",
    "max_time": "timeout_s",
    "output_ids": "output",
    "pause_after": "num_steps",
    "keep_stop_string": "include_stop",
}


def raw_of(body: GenerateBody, prompt: Prompt, limits: Limits, *, version: int) -> RawParams:
    """The parameters of a request. Raises InvalidRequest for what breaks a rule by itself."""
    tops = body.top_logprobs
    # A mask may be large: it is looked at once, by validation.
    sampling = {**body.sampling(), "logit_bias": None}
    if body.temperature is None:
        sampling["temperature"] = 0.0
    raw = RawParams(
        **sampling,
        typical_p=body.typical_p,
        max_new_tokens=_max_new_tokens(body, prompt, limits, version),
        min_new_tokens=body.min_tokens,
        stop=tuple(body.stop or ()),
        max_stop_sequences=MAX_STOPS,
        top_n_tokens=(1 if version == 1 else 0) if tops is None else tops,
        max_top_n_tokens=MAX_TOP_LOGPROBS,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        keep_stop_string=body.include_stop is not False,
        grammar=body.constraint,
        max_time=body.timeout_s,
        output_ids=tuple(body.output or ()),
        pause_after=body.num_steps,
        names={**_NAMES, "inputs": prompt.field},
    )
    return replace(normalize(raw, limits), logit_bias=body.logit_bias)


def _max_new_tokens(body: GenerateBody, prompt: Prompt, limits: Limits, version: int) -> int | None:
    """As given; else all the room, or in version 1 what its server gives, if there is the room."""
    if body.max_tokens is not None or version > 1:
        return body.max_tokens
    if isinstance(prompt.content, str):
        return _DEFAULT_TOKENS
    return max(1, min(_DEFAULT_TOKENS, limits.max_total_len - len(prompt.content)))
