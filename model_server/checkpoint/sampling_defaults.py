"""The sampling parameters that a checkpoint's makers recommend, in its generation_config.json."""

from collections.abc import Mapping
from pathlib import Path

from constraints.end_tokens import read_object
from model_server.errors import CheckpointBroken

# Of those that Tandem has: the least and the largest value, as OpenAI's and vLLM's requests.
_RANGES = {
    "temperature": (0.0, float("inf")),
    "top_p": (0.0, 1.0),
    "top_k": (-1.0, float("inf")),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-6, float("inf")),
}


def read_sampling_defaults(folder: Path) -> Mapping[str, float]:
    """The parameters that the file names, in the order above; those that are null count as absent.

    Raises CheckpointBroken for values that no request could have.
    """
    path = folder / "generation_config.json"
    try:
        config = read_object(path)
    except (OSError, ValueError) as error:
        raise CheckpointBroken(str(error)) from error
    defaults: dict[str, float] = {}
    for name, (least, most) in _RANGES.items():
        value = config.get(name)
        if value is None:
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not least <= value <= most or (name == "top_k" and value % 1):
            raise CheckpointBroken(f"{path}: {name} {value!r}: no request could have this value")
        defaults[name] = float(value)
    return defaults
