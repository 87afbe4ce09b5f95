"""The options of `launcher serve` that matter where several models are served."""

from pathlib import Path
from typing import Annotated, Optional

import typer

FLEET = "Several models"

ModelsFolder = Annotated[
    Optional[Path],
    typer.Option(
        envvar="MODELS_FOLDER",
        rich_help_panel=FLEET,
        show_default="the working folder",
        help="With auto: requests may name the models below this folder.",
    ),
]
HubModels = Annotated[
    bool,
    typer.Option(
        "--hub-models/--no-hub-models",
        envvar="HUB_MODELS",
        rich_help_panel=FLEET,
        help="With auto: requests may name models of the hub.",
    ),
]
MaxLoadedModels = Annotated[
    int,
    typer.Option(
        envvar="MAX_LOADED_MODELS",
        min=1,
        rich_help_panel=FLEET,
        help="Models in memory at once; the least recently used idle one leaves for another.",
    ),
]
ModelLoadTimeout = Annotated[
    float,
    typer.Option(
        envvar="MODEL_LOAD_TIMEOUT",
        min=0.001,
        rich_help_panel=FLEET,
        help="Seconds that a request waits for its model before 503; the load goes on.",
    ),
]
ModelIdleTimeout = Annotated[
    Optional[float],
    typer.Option(
        envvar="MODEL_IDLE_TIMEOUT",
        min=0.001,
        rich_help_panel=FLEET,
        help="Seconds without a request after which a model leaves the memory (default: never).",
    ),
]
ModelTurn = Annotated[
    float,
    typer.Option(
        envvar="MODEL_TURN",
        min=0.001,
        rich_help_panel=FLEET,
        help="Seconds that a busy model goes on taking requests while another waits for its room.",
    ),
]
ModelRetryAfter = Annotated[
    float,
    typer.Option(
        envvar="MODEL_RETRY_AFTER",
        min=0.001,
        rich_help_panel=FLEET,
        help="Seconds before a model that could not be loaded is tried again.",
    ),
]
HttpUds = Annotated[
    Optional[Path],
    typer.Option(
        envvar="HTTP_UDS",
        rich_help_panel="Where it runs",
        help="Listen at this unix socket instead of --hostname and --port.",
    ),
]
ParentPid = Annotated[Optional[int], typer.Option(hidden=True)]
