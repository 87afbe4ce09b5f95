"""The served model and the limits; what answers of every API share.

From the flags and what the shard can hold come the limits and the server information; from these
the model's name, the timing headers and the constraint's fields of answers.
"""

import re
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from processes.capacity import Capacity, Pool
from processes.model_folders import name_for_clients
from proto.contract import NUM_OWN_STATES, ModelInfo, PoolLimits
from router.config import RouterConfig
from router.engine.validation import Limits
from router.http.request_record import RequestRecord
from router.request.errors import InvalidRequest, StartupFailed
from router.request.request import Finished
from router.text.model_card import ExamplePrompt

# Draft tokens of a sequence, where nothing else is asked for.
_MAX_DRAFTS = 7


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The served model and the limits, fixed once the server is ready.

    `model_id` is the model's one name in lists. Requests may name one of `aliases` too: those are
    never listed, since a path of this machine can be among them. `created_s` is in Unix time.
    Lengths in tokens. `setup` is a digest of the shards' versions, checkpoint, flags and GPU.
    `example_prompts` are those of the model's card. `sees`: prompts may have images; if not,
    `blind_reason` says why where the model's class takes them.
    """

    model_id: str
    aliases: tuple[str, ...]
    limits: Limits
    version: str
    created_s: int
    max_concurrent_requests: int
    validation_workers: int
    compute_type: str
    model_dtype: str | None = None
    model_device_type: str | None = None
    executor: str | None = None
    executor_fallback: str | None = None
    same_answer_under_load: bool = False
    language_model_only: bool = False
    num_shards: int = 1
    block_size: int | None = None
    num_blocks: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_size: int | None = None
    max_drafts: int = 0
    prefix_caching: bool = True
    num_states: int = 0
    example_prompts: tuple[ExamplePrompt, ...] = ()
    setup: str = ""
    sees: bool = False
    blind_reason: str | None = None

    def check_sees(self, place: str) -> None:
        """Raises InvalidRequest for the image at `place` where the model does not see."""
        if not self.sees:
            reason = "" if self.blind_reason is None else f": {self.blind_reason}"
            message = f"`{place}` is an image, and this model reads text alone{reason}"
            raise InvalidRequest(message, place)

    @property
    def system_fingerprint(self) -> str:
        """Changes whenever the same seed may bring another answer.

        It ends in `-invariant` where a request's answer does not depend on what runs beside it.
        """
        parts = (
            self.executor,
            self.model_dtype,
            "invariant" if self.same_answer_under_load else None,
        )
        kind = "-".join(part for part in parts if part)
        return "-".join((self.version, *re.findall(r"[a-z0-9_]+", kind.lower())))


def stream_headers(info: ServerInfo, num_characters: int) -> dict[str, str]:
    """TGI's headers: what is known before the first token. `num_characters` are the prompt's."""
    return {"x-compute-type": info.compute_type, "x-compute-characters": str(num_characters)}


def answer_headers(
    info: ServerInfo, record: RequestRecord, num_generated_tokens: int
) -> dict[str, str]:
    """TGI's headers: what is known at the end, in whole milliseconds.

    Times are those of the record's first sequence.
    """
    total_s = time.monotonic() - record.started_s
    inference_s = record.inference_s or 0.0
    return {
        **stream_headers(info, record.num_prompt_characters),
        "x-compute-time": f"{total_s:.6f}",
        "x-total-time": _ms(total_s),
        "x-validation-time": _ms(record.validation_s),
        "x-queue-time": _ms(record.queue_s or 0.0),
        "x-inference-time": _ms(inference_s),
        "x-time-per-token": _ms(inference_s / max(1, num_generated_tokens)),
        "x-prompt-tokens": str(record.num_prompt_tokens),
        "x-generated-tokens": str(num_generated_tokens),
    }


def _ms(seconds: float) -> str:
    return str(int(1000 * seconds))


def constraint_fields(end: Finished) -> dict[str, Any]:
    """Whether the text satisfies the request's constraint; nothing without one.

    A violation is there where the text itself was checked.
    """
    if end.constraint_satisfied is None:
        return {}
    violation = {} if end.violation is None else {"constraint_violation": end.violation}
    return {"constraint_satisfied": end.constraint_satisfied, **violation}


def limits_of(
    config: RouterConfig,
    info: ModelInfo,
    pool: PoolLimits,
    template_end_ids: tuple[int, ...] = (),
) -> Limits:
    """Raises StartupFailed when the flags ask for more than model and pool can hold."""
    if info.state_bytes and pool.num_states < NUM_OWN_STATES:
        raise StartupFailed(
            f"the shards have room for {pool.num_states} states of {info.state_bytes} bytes, and a"
            " request works in two"
        )
    shown = _pool_of(info, pool)
    reason = shown.too_long(config.max_input_tokens, config.max_total_tokens)
    if reason is not None:
        raise StartupFailed(reason)
    max_total_len = config.max_total_tokens or pool.max_total_len
    if max_total_len > pool.max_total_len:
        raise StartupFailed(
            f"--max-total-tokens {max_total_len}: must be at most {pool.max_total_len}, the model's"
            " longest context"
        )
    max_input_len = config.max_input_tokens or max_total_len - 1
    if max_input_len >= max_total_len:
        raise StartupFailed(
            f"--max-input-tokens {max_input_len}: must be below the longest prompt and answer "
            f"together, {max_total_len}"
        )
    models_own = {} if config.generation_config == "none" else info.sampling_defaults
    return Limits(
        max_input_len=max_input_len,
        max_total_len=max_total_len,
        vocab_size=info.vocab_size,
        eos_token_ids=(*info.eos_token_ids, *template_end_ids),
        template_end_ids=template_end_ids,
        max_best_of=config.max_best_of,
        max_stop_sequences=config.max_stop_sequences,
        max_top_n_tokens=config.max_top_n_tokens,
        max_client_batch_size=config.max_client_batch_size,
        max_duration_s=config.max_request_duration,
        sampling_defaults={**models_own, **(config.override_generation_config or {})},
        takes_grammars=not config.disable_grammar_support,
        shares_prefixes=config.prefix_cache_scope == "shared",
    )


def max_drafts_of(config: RouterConfig, info: ModelInfo) -> int:
    """The most draft tokens of a sequence in a step.

    Raises StartupFailed where they would change answers.
    """
    if config.speculate is None:
        return _MAX_DRAFTS if info.is_invariant else 0
    if config.speculate and not info.is_invariant:
        raise StartupFailed(
            f"--speculate {config.speculate}: draft tokens would change answers, since those of the"
            f" executor `{info.executor}` depend on what is computed beside them"
        )
    return config.speculate


def capacity_of(info: ModelInfo, pool: PoolLimits, limits: Limits) -> Capacity:
    """What the log says of the model."""
    return Capacity(
        num_parameters=info.num_parameters,
        dtype=info.dtype,
        executor=info.executor,
        num_shards=info.world_size,
        max_total_len=limits.max_total_len,
        weights_bytes=info.weights_bytes,
        pool=_pool_of(info, pool),
    )


def _pool_of(info: ModelInfo, pool: PoolLimits) -> Pool:
    return Pool(
        pool.num_blocks,
        pool.block_size,
        info.bytes_per_block,
        num_states=pool.num_states,
        state_bytes=info.state_bytes,
    )


def caches_prefixes(config: RouterConfig, info: ModelInfo) -> bool:
    """Whether a request may begin with what an earlier one computed.

    One of a model with states begins where a state was kept.
    """
    return config.prefix_caching and (info.keeps_states or not info.state_bytes)


def server_info(
    config: RouterConfig,
    num_shards: int,
    info: ModelInfo,
    pool: PoolLimits,
    limits: Limits,
    prompts: tuple[ExamplePrompt, ...] = (),
) -> ServerInfo:
    """The server information that routes answer. Raises StartupFailed as `max_drafts_of`."""
    own_name = name_for_clients(info.model_id)
    served_name = config.served_model_name or own_name
    aliases = (info.model_id, own_name, own_name.rpartition("/")[2])
    return ServerInfo(
        model_id=served_name,
        aliases=tuple(each for each in dict.fromkeys(aliases) if each != served_name),
        limits=limits,
        version=version("tandem"),
        created_s=int(time.time()),
        max_concurrent_requests=config.max_concurrent_requests,
        validation_workers=config.validation_workers,
        compute_type=config.compute_type or _compute_type(info),
        model_dtype=info.dtype,
        model_device_type=info.device_type,
        executor=info.executor,
        executor_fallback=info.fallback_reason,
        same_answer_under_load=info.is_invariant,
        language_model_only=info.language_model_only,
        sees=info.sees_images,
        blind_reason=info.blind_reason,
        num_shards=num_shards,
        block_size=pool.block_size,
        num_blocks=pool.num_blocks,
        max_batch_prefill_tokens=config.max_batch_prefill_tokens,
        max_batch_size=config.batch_size,
        max_drafts=max_drafts_of(config, info),
        prefix_caching=caches_prefixes(config, info),
        num_states=pool.num_states,
        example_prompts=prompts,
        setup=info.setup,
    )


def _compute_type(info: ModelInfo) -> str:
    """TGI's name for a GPU, which its clients know, or `cpu`."""
    return "cpu" if info.device_type == "cpu" else "gpu+optimized"
