"""The fleet's errors, in domain words.

FleetError
 +-- NoModelNamed     the request names no model, and there is no default
 +-- UnknownModel     no such model, or none that may be loaded; says why
 +-- NotNow           a valid request at a bad moment; `retry_after_s`
 |    +-- LoadFailed      the model could not be loaded lately; says why
 |    +-- StillLoading    it is being loaded, for longer than the request may wait
 |    +-- NoRoom          other models are busy, for longer than the request may wait
 |    +-- ServerGone      its server stopped before it answered
 |    +-- ShuttingDown    no new requests are accepted
 +-- ResponseCut      the response of a model's server ended before it was complete
 +-- DidNotStart      a model's server ended, or was cancelled, before it was ready; says why
"""


class FleetError(Exception):
    """Root of everything that the fleet raises on purpose."""


class NoModelNamed(FleetError):
    """The request names no model, and there is no default."""


class UnknownModel(FleetError):
    """No model has this name. `name` is as the request has it."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the model {name[:200]!r} does not exist: {reason}")
        self.name = name


class NotNow(FleetError):
    """A valid request at a bad moment; it may succeed `retry_after_s` seconds later."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
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
    """The front is shutting down."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class ResponseCut(FleetError):
    """The response of a model's server ended before it was complete."""


class DidNotStart(FleetError):
    """A model's server ended, or was cancelled, before it was ready; the message is one line."""
