"""The fleet's errors: those of requests, with their statuses, and two that stay inside.

HttpError
 +-- FleetError
      +-- NoModelNamed     the request names no model, and there is no default
      +-- UnknownModel     no such model, or none that may be loaded; says why
      +-- TooManyMoves     as many servers ended as it was asked of
      +-- NotNow           a valid request at a bad moment; `retry_after_s`
           +-- LoadFailed      the model could not be loaded lately; says why
           +-- StillLoading    it is being loaded, for longer than the request may wait
           +-- NoRoom          other models are busy, for longer than the request may wait
           +-- ServerGone      its server stopped before it answered
           |    +-- NotReached     there was no connection to it, so nothing was asked
           +-- NoReplica       no replica takes requests
           +-- ShuttingDown    no new requests are accepted
ResponseCut               the response of a model's server ended before it was complete
DidNotStart               a model's server ended, or was cancelled, before it was ready; says why
"""

from typing import ClassVar

from router.http.errors import HttpError


class FleetError(HttpError):
    """Root of the errors of requests that no model's server answered."""


class NoModelNamed(FleetError):
    """The request names no model, and there is no default."""

    def __init__(self, message: str) -> None:
        super().__init__(400, "model_required", message, field="model")


class UnknownModel(FleetError):
    """No model has this name."""

    def __init__(self, name: str, reason: str) -> None:
        message = f"the model {name[:200]!r} does not exist: {reason}"
        super().__init__(404, "model_not_found", message, field="model")


class TooManyMoves(FleetError):
    """Each replica that had the request ended before its answer was complete."""

    def __init__(self, num_replicas: int) -> None:
        message = f"{num_replicas} replicas ended while they had this request; it goes to no other"
        super().__init__(502, "replicas_gone", message)


class NotNow(FleetError):
    """A valid request at a bad moment; it may succeed `retry_after_s` seconds later."""

    TYPE: ClassVar[str]
    retry_after_s: float

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(503, self.TYPE, message, retry_after_s=retry_after_s)


class LoadFailed(NotNow):
    """The model could not be loaded."""

    TYPE = "model_load_failed"


class StillLoading(NotNow):
    """The model's load takes longer than the request may wait; it goes on."""

    TYPE = "model_loading"


class NoRoom(NotNow):
    """The models in memory are busy for longer than the request may wait."""

    TYPE = "overloaded"


class ServerGone(NotNow):
    """The model's server stopped before it answered."""

    TYPE = "model_server_gone"


class NotReached(ServerGone):
    """There was no connection to the server."""


class NoReplica(NotNow):
    """No replica of the model takes requests, or none that could go on with this one."""

    TYPE = "no_replica"


class ShuttingDown(NotNow):
    """The front is shutting down."""

    TYPE = "draining"

    def __init__(self) -> None:
        super().__init__("the server is shutting down")


class ResponseCut(Exception):
    """The response of a model's server ended before it was complete."""


class DidNotStart(Exception):
    """A model's server ended, or was cancelled, before it was ready; the message is one line."""
