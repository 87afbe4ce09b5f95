"""The knobs of the front of several models, for its own command line and for `launcher serve`.

What it has in common with the router is in `router/front_config.py`. Read by `fleet/config.py`.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from processes.settings import BadConfig, Whole, knob, number, seconds, switch
from router.front_config import FrontConfig

MODELS = "models"


def _folder(text: str) -> Path:
    path = Path(os.path.expanduser(text))
    if not os.path.isdir(path):
        raise BadConfig("must be a folder that exists")
    return path.resolve()


def _share(text: str) -> float:
    share = number(text)
    if not 0.0 < share <= 1.0:
        raise BadConfig("must be above 0 and at most 1")
    return share


@dataclass(frozen=True, slots=True)
class FleetConfig(FrontConfig):
    """What `python -m fleet` was told. Times in seconds."""

    models_folder: Path | None = knob(
        None,
        "with auto: requests may name the models below this folder; absent: the working one",
        _folder,
        group=MODELS,
    )
    hub_models: bool = knob(
        True, "with auto: requests may name models of the hub", switch, group=MODELS
    )
    max_loaded_models: int = knob(
        1,
        "models in memory at once; the least recently used idle one leaves for another",
        Whole(1),
        group=MODELS,
    )
    model_load_timeout: float = knob(
        300.0,
        "seconds that a request waits for its model before 503; the load goes on",
        seconds,
        group=MODELS,
    )
    model_idle_timeout: float | None = knob(
        None,
        "seconds without a request after which a model leaves the memory; absent: never",
        seconds,
        group=MODELS,
    )
    model_turn: float = knob(
        10.0,
        "seconds that a busy model goes on taking requests while another waits for its room",
        seconds,
        group=MODELS,
    )
    model_retry_after: float = knob(
        30.0,
        "seconds before a model that could not be loaded is tried again",
        seconds,
        group=MODELS,
    )
    cuda_memory_fraction: float = knob(
        0.9, "share of a GPU's memory that all models together may fill", _share, group=MODELS
    )
