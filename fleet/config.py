"""Every knob of the front of several models, once. The only file of the fleet that reads argv and
environment. What this front has in common with the router is in `router/front_config.py`.

What stands behind `--` on the command line are flags of `launcher serve`, for every model's server.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from router.front_config import ACCESS, HTTP, LOGS, TIME, FrontConfig
from router.knobs import BadConfig, Whole, knob, number, parser_of, read_knobs, seconds, switch

AUTO = "auto"
_MODELS = "models"


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
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
        group=_MODELS,
    )
    hub_models: bool = knob(
        True, "with auto: requests may name models of the hub", switch, group=_MODELS
    )
    max_loaded_models: int = knob(
        1,
        "models in memory at once; the least recently used idle one leaves for another",
        Whole(1),
        group=_MODELS,
    )
    model_load_timeout: float = knob(
        300.0,
        "seconds that a request waits for its model before 503; the load goes on",
        seconds,
        group=_MODELS,
    )
    model_idle_timeout: float | None = knob(
        None,
        "seconds without a request after which a model leaves the memory; absent: never",
        seconds,
        group=_MODELS,
    )
    model_turn: float = knob(
        10.0,
        "seconds that a busy model goes on taking requests while another waits for its room",
        seconds,
        group=_MODELS,
    )
    model_retry_after: float = knob(
        30.0,
        "seconds before a model that could not be loaded is tried again",
        seconds,
        group=_MODELS,
    )
    cuda_memory_fraction: float = knob(
        0.9, "share of a GPU's memory that all models together may fill", _share, group=_MODELS
    )


@dataclass(frozen=True, slots=True)
class Told:
    """A command line: the knobs, the models, the flags of every model's server."""

    config: FleetConfig
    models: tuple[str, ...]
    child_flags: tuple[str, ...]
    environ: Mapping[str, str]

    @property
    def takes_any(self) -> bool:
        """Whether requests may name models that the command line does not."""
        return self.models == (AUTO,)


def read_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Told:
    """What a command line without the program's name, and an environment, say. Raises BadConfig."""
    environ = os.environ if environ is None else environ
    own, child_flags = list(argv), []
    if "--" in own:
        cut = own.index("--")
        own, child_flags = own[:cut], own[cut + 1 :]
    models, flags = _take_models(own)
    parser = parser_of(
        fields(FleetConfig),
        (_MODELS, HTTP, ACCESS, TIME, LOGS),
        "python -m fleet",
        "Tandem's front for several models: --model ID ..., or --model auto, and behind -- the "
        "flags of `launcher serve` for each.",
    )
    config = read_knobs(FleetConfig, flags, environ, parser)
    if not models:
        raise BadConfig("--model: at least one must be given; see --help")
    return Told(config, tuple(models), tuple(child_flags), environ)


def _take_models(argv: list[str]) -> tuple[list[str], list[str]]:
    """The values of --model, which may hold what others separate words by; and all the rest."""
    models, rest, words = [], [], iter(argv)
    for word in words:
        if word == "--model":
            models.append(next(words, ""))
        else:
            rest.append(word)
    return models, rest
