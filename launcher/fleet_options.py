"""The options of `launcher serve` that matter where several models are served."""

from dataclasses import dataclass
from pathlib import Path

from launcher.declared import Told, knob_of, option
from launcher.fleet_knobs import FleetConfig
from router.front_config import FrontConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """Which models there are, how many at once, and when they come and go."""

    models_folder: Path | None = knob_of(FleetConfig, show_default="the working folder")
    hub_models: bool = knob_of(FleetConfig)
    max_loaded_models: int = knob_of(FleetConfig)
    model_load_timeout: float = knob_of(FleetConfig)
    model_idle_timeout: float | None = knob_of(FleetConfig)
    model_turn: float = knob_of(FleetConfig)
    model_retry_after: float = knob_of(FleetConfig)
    # The front's own children are started with these.
    parent_pid: int | None = knob_of(FrontConfig, told=Told.FRONT, for_servers=False, hidden=True)
    turn_file: Path | None = option(
        None,
        "What dry runs lock, of which one at a time is to take a core.",
        envvar=None,
        for_servers=False,
        hidden=True,
    )
    needs_file: Path | None = option(
        None,
        "Where a dry run writes the bytes of the host that the model needs.",
        envvar=None,
        for_servers=False,
        hidden=True,
    )
