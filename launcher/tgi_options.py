"""TGI's options that Tandem accepts by name alone: without effect, or refused with the reason.

What is refused would change answers; who asks for it must not get something else in silence.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Optional

import typer

from launcher.errors import BadSetting

TGI = "Accepted for TGI's sake"
_REFUSED = "Refused: not served yet."
_SHARDED: Mapping[str, str] = MappingProxyType({"true": "--sharded", "false": "--no-sharded"})


def _refused(variable: str) -> object:
    return typer.Option(envvar=variable, rich_help_panel=TGI, help=_REFUSED)


def _inert(variable: str, why: str) -> object:
    return typer.Option(envvar=variable, rich_help_panel=TGI, help=f"Without effect: {why}.")


Quantize = Annotated[Optional[str], _refused("QUANTIZE")]
Speculate = Annotated[int, _refused("SPECULATE")]
KvCacheDtype = Annotated[Optional[str], _refused("KV_CACHE_DTYPE")]
RopeScaling = Annotated[Optional[str], _refused("ROPE_SCALING")]
RopeFactor = Annotated[Optional[float], _refused("ROPE_FACTOR")]
LoraAdapters = Annotated[Optional[str], _refused("LORA_ADAPTERS")]
Ngrok = Annotated[
    bool, typer.Option(envvar="NGROK", rich_help_panel=TGI, help="Refused: opens no tunnel.")
]
WaitingServedRatio = Annotated[
    float,
    _inert("WAITING_SERVED_RATIO", "prompt chunks ride in the same steps as decodes"),
]
MaxWaitingTokens = Annotated[int, _inert("MAX_WAITING_TOKENS", "see --waiting-served-ratio")]
MaxBatchTotalTokens = Annotated[
    Optional[int], _inert("MAX_BATCH_TOTAL_TOKENS", "the pool is measured, see --kv-blocks")
]
CudaGraphs = Annotated[Optional[str], _inert("CUDA_GRAPHS", "no step is recorded")]
PrometheusPort = Annotated[int, _inert("PROMETHEUS_PORT", "/metrics is on the main port")]
UsageStats = Annotated[str, _inert("USAGE_STATS", "nothing is sent home")]
EnablePrefillLogprobs = Annotated[
    bool, _inert("ENABLE_PREFILL_LOGPROBS", "log-probabilities of prompts are always there")
]
DisableCustomKernels = Annotated[
    bool,
    typer.Option(envvar="DISABLE_CUSTOM_KERNELS", rich_help_panel=TGI, help="As --attention cpu."),
]

_REASONS: Mapping[str, str] = {
    "quantize": "quantization on load is not served yet",
    "speculate": "speculation is not served yet",
    "kv_cache_dtype": "the cache has the model's own precision",
    "rope_scaling": "positions are scaled as the checkpoint's config.json says",
    "rope_factor": "positions are scaled as the checkpoint's config.json says",
    "lora_adapters": "adapters are not served yet; merge one into the checkpoint",
    "ngrok": "no tunnel is opened; run one beside the server",
}


def refuse(**given: object) -> None:
    """Raises BadSetting for the first of these options that asks for something."""
    for name, value in given.items():
        if value:
            shown = "" if value is True else f" {value}"
            raise BadSetting(f"--{name.replace('_', '-')}{shown}: {_REASONS[name]}")


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
