"""The front's command line. The only file of the fleet that reads argv and environment.

What stands behind `--` on the command line are flags of `launcher serve`, for every model's server.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from launcher.fleet_knobs import MODELS, FleetConfig
from processes.settings import BadConfig, parser_of, read_knobs
from router.front_config import ACCESS, HTTP, LOGS, TIME

AUTO = "auto"


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
        (MODELS, HTTP, ACCESS, TIME, LOGS),
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
