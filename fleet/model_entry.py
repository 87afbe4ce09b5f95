"""One model's place in the books: its states, and the table of what changes them; pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Of a model."""

    ABSENT = "absent"
    CHECKING = "checking"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class Wait(StrEnum):
    """What those who wait for a model wait for."""

    LOAD = "load"
    CHECK = "check"
    LINE = "line"
    ROOM = "room"


class Transition(StrEnum):
    """What changes a state."""

    CHECK = "check"
    PASSED = "passed"
    LOAD = "load"
    LOADED = "loaded"
    REFUSED = "refused"
    UNLOAD = "unload"
    GONE = "gone"


TRANSITIONS: Mapping[tuple[State, Transition], State] = MappingProxyType(
    {
        (State.ABSENT, Transition.CHECK): State.CHECKING,
        (State.FAILED, Transition.CHECK): State.CHECKING,
        (State.CHECKING, Transition.PASSED): State.ABSENT,
        (State.CHECKING, Transition.REFUSED): State.FAILED,
        (State.ABSENT, Transition.LOAD): State.LOADING,
        (State.FAILED, Transition.LOAD): State.LOADING,
        (State.LOADING, Transition.LOADED): State.READY,
        (State.LOADING, Transition.REFUSED): State.FAILED,
        (State.READY, Transition.UNLOAD): State.DRAINING,
        (State.DRAINING, Transition.GONE): State.ABSENT,
    }
)


@dataclass(slots=True)
class ModelEntry:
    """One model's place in the books. Written by the roster alone.

    `generation` counts its servers; `since_s` is when its state began. `is_closing`: ready, but no
    further user comes in. `is_sound`: it was checked, and others may leave for it. `is_at_hand`: it
    need not be fetched.
    """

    name: str
    state: State = State.ABSENT
    since_s: float = 0.0
    used_s: float = 0.0
    generation: int = 0
    num_users: int = 0
    num_waiting: int = 0
    waiting_since_s: float = 0.0
    is_closing: bool = False
    is_sound: bool = False
    is_at_hand: bool = True
    failure: str = ""

    @property
    def is_open(self) -> bool:
        """Whether a request may begin now."""
        return self.state is State.READY and not self.is_closing
