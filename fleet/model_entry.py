"""One model's entry in the model table: its states, what changes them, what requests wait for."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fleet.errors import NoRoom, NotNow, StillLoading

_RETRY_AFTER_S = 5.0


class ModelState(StrEnum):
    """The state of a model, as `/v1/models` shows it."""

    ABSENT = "absent"
    CHECKING = "checking"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Transition(StrEnum):
    """An event that changes a model's state."""

    CHECK = "check"
    PASSED = "passed"
    LOAD = "load"
    LOADED = "loaded"
    REFUSED = "refused"
    UNLOAD = "unload"
    GONE = "gone"


TRANSITIONS: Mapping[tuple[ModelState, Transition], ModelState] = MappingProxyType(
    {
        (ModelState.ABSENT, Transition.CHECK): ModelState.CHECKING,
        (ModelState.FAILED, Transition.CHECK): ModelState.CHECKING,
        (ModelState.CHECKING, Transition.PASSED): ModelState.ABSENT,
        (ModelState.CHECKING, Transition.REFUSED): ModelState.FAILED,
        (ModelState.ABSENT, Transition.LOAD): ModelState.LOADING,
        (ModelState.FAILED, Transition.LOAD): ModelState.LOADING,
        (ModelState.LOADING, Transition.LOADED): ModelState.READY,
        (ModelState.LOADING, Transition.REFUSED): ModelState.FAILED,
        (ModelState.READY, Transition.UNLOAD): ModelState.DRAINING,
        (ModelState.DRAINING, Transition.GONE): ModelState.ABSENT,
    }
)


@dataclass(slots=True)
class ModelEntry:
    """One model's entry. Only the model table writes to it.

    `server_id` numbers the servers that were started, and `since_s` is the time of the last state
    change. `is_closing`: ready, but takes no further users. `is_checked`: a check passed, so other
    models may be unloaded for it. `is_local`: nothing of it has to be downloaded.
    """

    name: str
    state: ModelState = ModelState.ABSENT
    since_s: float = 0.0
    used_s: float = 0.0
    server_id: int = 0
    num_users: int = 0
    num_waiting: int = 0
    waiting_since_s: float = 0.0
    is_closing: bool = False
    is_checked: bool = False
    is_local: bool = True
    failure: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a request may start now."""
        return self.state is ModelState.READY and not self.is_closing


class WaitReason(StrEnum):
    """What the requests for a model wait for."""

    LOAD = "load"
    CHECK = "check"
    CHECK_QUEUE = "check_queue"
    ROOM = "room"

    @property
    def request_state(self) -> str:
        """The state of a request that waits for this, in comments and system messages."""
        return "loading" if self in _PHASES else "queued"

    def message(self, name: str, waited_s: float) -> str:
        """A progress message for clients; `waited_s` since the model's last state change."""
        return _MESSAGES[self].format(name=name, s=waited_s)

    def timeout_error(self, name: str, waited_s: float, timeout_s: float) -> NotNow:
        """The error of a request that waited for `timeout_s`."""
        within = f"within {timeout_s:g} s (--model-load-timeout)"
        if self in _PHASES:
            return StillLoading(
                f"the model {name!r} is still being {_PHASES[self]}, {waited_s:.0f} s so far; "
                f"it was not ready {within}",
                _RETRY_AFTER_S,
            )
        if self is WaitReason.CHECK_QUEUE:
            return NoRoom(
                f"the turn of the model {name!r} to be fetched or checked did not come {within}: "
                "others are",
                _RETRY_AFTER_S,
            )
        return NoRoom(
            f"there was no room for the model {name!r} {within}: the models in memory are busy",
            _RETRY_AFTER_S,
        )


_MESSAGES: Mapping[WaitReason, str] = MappingProxyType(
    {
        WaitReason.LOAD: "{name} is being loaded: {s:.0f} s",
        WaitReason.CHECK: "{name} is being fetched or checked: {s:.0f} s",
        WaitReason.CHECK_QUEUE: "{name} waits for its turn to be fetched or checked: others are",
        WaitReason.ROOM: "{name} waits for room: others are in memory",
    }
)
_PHASES: Mapping[WaitReason, str] = MappingProxyType(
    {WaitReason.LOAD: "loaded", WaitReason.CHECK: "fetched or checked"}
)
