"""The limits and the server information, from the flags and what the shard can hold."""

import time
from importlib.metadata import version

from proto.contract import ModelInfo, PoolLimits
from router.config import RouterConfig
from router.http.server_info import ServerInfo
from router.request.errors import StartupFailed
from router.request.validation import Limits


def limits_of(config: RouterConfig, info: ModelInfo, pool: PoolLimits) -> Limits:
    """Raises StartupFailed when the flags ask for more than model and pool can hold."""
    max_total_len = config.max_total_tokens or pool.max_total_len
    if max_total_len > pool.max_total_len:
        raise StartupFailed(
            f"--max-total-tokens {max_total_len}: the model and its KV cache "
            f"({pool.num_blocks} blocks of {pool.block_size}) hold {pool.max_total_len} at most"
        )
    max_input_len = config.max_input_tokens or max_total_len - 1
    if max_input_len >= max_total_len:
        raise StartupFailed(
            f"--max-input-tokens {max_input_len}: must be below the longest prompt and answer "
            f"together, {max_total_len}"
        )
    return Limits(
        max_input_len=max_input_len,
        max_total_len=max_total_len,
        vocab_size=info.vocab_size,
        eos_token_ids=info.eos_token_ids,
        max_best_of=config.max_best_of,
        max_stop_sequences=config.max_stop_sequences,
        max_top_n_tokens=config.max_top_n_tokens,
        max_client_batch_size=config.max_client_batch_size,
        max_duration_s=config.max_request_duration,
        takes_grammars=not config.disable_grammar_support,
    )


def server_info(
    config: RouterConfig, num_shards: int, info: ModelInfo, pool: PoolLimits, limits: Limits
) -> ServerInfo:
    """The server information that routes answer."""
    model_id = config.tokenizer_name or info.model_id
    served_name = config.served_model_name or model_id
    return ServerInfo(
        model_id=served_name,
        model_names=tuple(dict.fromkeys((served_name, model_id, info.model_id))),
        limits=limits,
        version=version("tandem"),
        created_s=int(time.time()),
        max_concurrent_requests=config.max_concurrent_requests,
        validation_workers=config.validation_workers,
        compute_type=config.compute_type or _compute_type(info),
        model_dtype=info.dtype,
        model_device_type=info.device_type,
        attention=info.attention_backend,
        num_shards=num_shards,
        block_size=pool.block_size,
        num_blocks=pool.num_blocks,
        max_batch_prefill_tokens=config.max_batch_prefill_tokens,
        max_batch_size=config.batch_size,
    )


def _compute_type(info: ModelInfo) -> str:
    """TGI's name for a GPU, which its clients know, or `cpu`."""
    return "cpu" if info.device_type == "cpu" else "gpu+optimized"
