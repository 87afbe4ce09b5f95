"""What those who wait for a model wait for, in words; pure."""

from collections.abc import Mapping
from types import MappingProxyType

from fleet.errors import NoRoom, NotNow, StillLoading
from fleet.model_entry import Wait

_RETRY_AFTER_S = 5.0
# As a client is told now and then, of a model's name; {s} are the seconds so far.
_NOTICES: Mapping[Wait, str] = MappingProxyType(
    {
        Wait.LOAD: "{name} is being loaded: {s:.0f} s",
        Wait.CHECK: "{name} is being fetched or checked: {s:.0f} s",
        Wait.LINE: "{name} waits for its turn to be fetched or checked: others are",
        Wait.ROOM: "{name} waits for room: others are in memory",
    }
)
_DOING: Mapping[Wait, str] = MappingProxyType(
    {Wait.LOAD: "loaded", Wait.CHECK: "fetched or checked"}
)


def state_of(wait: Wait) -> str:
    """The state of a request that waits so: "loading", or "queued"."""
    return "loading" if wait in _DOING else "queued"


def notice(name: str, wait: Wait, so_far_s: float) -> str:
    """What a client is told while it waits."""
    return _NOTICES[wait].format(name=name, s=so_far_s)


def too_late(name: str, wait: Wait, so_far_s: float, limit_s: float) -> NotNow:
    """What a client is told that waited for as long as it may."""
    within = f"within {limit_s:g} s (--model-load-timeout)"
    if wait in _DOING:
        return StillLoading(
            f"the model {name!r} is still being {_DOING[wait]}, {so_far_s:.0f} s so far; it was "
            f"not ready {within}",
            _RETRY_AFTER_S,
        )
    if wait is Wait.LINE:
        return NoRoom(
            f"the turn of the model {name!r} to be fetched or checked did not come {within}: "
            "others are",
            _RETRY_AFTER_S,
        )
    return NoRoom(
        f"there was no room for the model {name!r} {within}: the models in memory are busy",
        _RETRY_AFTER_S,
    )
