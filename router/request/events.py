"""The events of a request, in the order in which its client sees them.

    PromptScored?  TokenGenerated*  (Finished | Failed)

Exactly one of the last two ends every accepted request. Frozen values, no behaviour.
"""

from dataclasses import dataclass

from proto.contract import FinishReason, MaskEffect
from router.request.errors import RouterError
from router.request.work import NO_WORK, Work


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token as reported: `text` is what it adds on its own; `logprob` None for a first token.

    `hidden`: a generated token that is no part of the answer's text, though it has a text: a
    special one, or the one that ended the answer.
    """

    token_id: int
    text: str
    logprob: float | None
    special: bool = False
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class PromptScored:
    """The prompt's tokens with their log-probabilities, from `prompt_from` on; only if requested.

    The very first token of a prompt has none.
    """

    tokens: tuple[TokenLogprob, ...]
    top_tokens: tuple[tuple[TokenLogprob, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenGenerated:
    """One generated token.

    `text` is what the client may show now: it never splits a character, never holds a stop
    string that is to be dropped, and may be empty while text is held back. `token.text` is the
    token's own incremental text, special tokens included, up to where a stop string ends the
    output. `mask_effect` is what the constraint did, where `top_tokens` are the model's own.
    """

    token: TokenLogprob
    text: str
    top_tokens: tuple[TokenLogprob, ...] = ()
    mask_effect: MaskEffect | None = None


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds of one request's life; `inference_s` begins with its first step."""

    queue_s: float
    time_to_first_token_s: float
    inference_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Finished:
    """The good end. `text` is the whole output as shown: the concatenation of all event texts
    and `tail`, what was held back until now. Of an output that goes on with one made before, it is
    what was not shown then. A pause has no tail: the request that continues the output shows what
    was held back.

    `num_prompt_tokens` counts all tokens of the request, those made before among them;
    `num_generated_tokens` what is new.

    `constraint_satisfied`: whether it belongs to the request's constraint, None without one and at
    a pause;
    `violation` says what is wrong where that is known, which is where the text itself was checked.
    """

    reason: FinishReason
    text: str
    tail: str
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    seed: int | None
    stop_string: str | None = None
    stop_token_id: int | None = None
    timings: Timings | None = None
    constraint_satisfied: bool | None = None
    violation: str | None = None
    work: Work = NO_WORK


@dataclass(frozen=True, slots=True)
class Failed:
    """The bad end."""

    error: RouterError


Event = PromptScored | TokenGenerated | Finished | Failed
