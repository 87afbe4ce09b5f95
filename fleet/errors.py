"""What can go wrong between a request and its model, in domain words.

FleetError
 +-- NoModelNamed     the request names no model, and there is no default
 +-- UnknownModel     no such model, or none that may be loaded; says why
 +-- NotNow           a good request at a bad moment; `retry_after_s`
 |    +-- LoadFailed      the model could not be loaded lately; says why
 |    +-- StillLoading    it is being loaded, for longer than the request may wait
 |    +-- NoRoom          other models are busy, for longer than the request may wait
 |    +-- ServerGone      its server stopped before it answered
 |    +-- ShuttingDown    nothing new is taken
 +-- Cut              an answer that ended before it was whole
"""


class FleetError(Exception):
    """Root of everything that the fleet raises on purpose."""


class NoModelNamed(FleetError):
    """The request names no model, and there is none to take for it."""


class UnknownModel(FleetError):
    """A name that means no model here. `name` as it was asked for."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the model {name[:200]!r} does not exist: {reason}")
        self.name = name


class NotNow(FleetError):
    """A good request at a bad moment; `retry_after_s` seconds later may be a better one."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class LoadFailed(NotNow):
    """The model could not be loaded."""


class StillLoading(NotNow):
    """The model's load takes longer than the request may wait; it goes on."""


class NoRoom(NotNow):
    """The models in memory are busy for longer than the request may wait."""


class ServerGone(NotNow):
    """The model's server stopped before it answered."""


class ShuttingDown(NotNow):
    """The front is being stopped."""


class Cut(FleetError):
    """The answer ended before it was whole."""
