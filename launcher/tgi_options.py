"""TGI's options that Tandem accepts by name alone: without effect, or refused with the reason.

What is refused would change answers; who asks for it must not get something else in silence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from launcher.declared import Told, option
from launcher.errors import BadSetting

_SHARDED: Mapping[str, str] = MappingProxyType({"true": "--sharded", "false": "--no-sharded"})


def _refused(default: Any) -> Any:
    return option(default, "Refused: not served yet.")


def _inert(default: Any, why: str, told: Told = Told.NOBODY) -> Any:
    return option(default, f"Without effect: {why}.", told=told)


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiOptions:
    """Only `disable_custom_kernels` does something, and what is in _REASONS may not."""

    quantize: str | None = _refused(None)
    speculate: int = _refused(0)
    kv_cache_dtype: str | None = _refused(None)
    rope_scaling: str | None = _refused(None)
    rope_factor: float | None = _refused(None)
    lora_adapters: str | None = _refused(None)
    ngrok: bool = option(False, "Refused: opens no tunnel.", told=Told.ROUTER)
    waiting_served_ratio: float = _inert(0.3, "prompt chunks ride in the same steps as decodes")
    max_waiting_tokens: int = _inert(20, "see --waiting-served-ratio")
    max_batch_total_tokens: int | None = _inert(None, "the pool is measured, see --kv-blocks")
    cuda_graphs: str | None = _inert(None, "no step is recorded")
    prometheus_port: int = _inert(9000, "/metrics is on the main port")
    usage_stats: str = _inert("off", "nothing is sent home")
    enable_prefill_logprobs: bool = _inert(
        False, "log-probabilities of prompts are always there", Told.ROUTER
    )
    disable_custom_kernels: bool = option(False, "As --attention cpu.")


_REASONS: Mapping[str, str] = {
    "quantize": "quantization on load is not served yet",
    "speculate": "speculation is not served yet",
    "kv_cache_dtype": "the cache has the model's own precision",
    "rope_scaling": "positions are scaled as the checkpoint's config.json says",
    "rope_factor": "positions are scaled as the checkpoint's config.json says",
    "lora_adapters": "adapters are not served yet; merge one into the checkpoint",
    "ngrok": "no tunnel is opened; run one beside the server",
}


def refuse(options: TgiOptions) -> None:
    """Raises BadSetting for the first of these options that asks for what is refused."""
    for name, reason in _REASONS.items():
        value = getattr(options, name)
        if value:
            shown = "" if value is True else f" {value}"
            raise BadSetting(f"--{name.replace('_', '-')}{shown}: {reason}")


def in_our_words(arguments: Sequence[str]) -> list[str]:
    """`--sharded true` and `--sharded=false`, as TGI's commands have it, in typer's spelling.

    Without this the word would be taken for another model to serve.
    """
    told: list[str] = []
    for argument in arguments:
        word, _, value = argument.partition("=")
        if argument in _SHARDED and told[-1:] == ["--sharded"]:
            told[-1] = _SHARDED[argument]
        elif word == "--sharded" and value in _SHARDED:
            told.append(_SHARDED[value])
        else:
            told.append(argument)
    return told
