"""The fleet's errors as a client reads them: the one place where they meet status codes."""

from collections.abc import Mapping
from math import ceil
from types import MappingProxyType

from fleet.errors import (
    FleetError,
    LoadFailed,
    NoModelNamed,
    NoRoom,
    NotNow,
    ServerGone,
    ShuttingDown,
    StillLoading,
    UnknownModel,
)
from router.http.lmtp.frames import error_fields
from router.http.server.errors import HttpError
from router.request.errors import RouterError

_UNAVAILABLE = 503
ERROR_TYPES: Mapping[type[FleetError], str] = MappingProxyType(
    {
        LoadFailed: "model_load_failed",
        StillLoading: "model_loading",
        NoRoom: "overloaded",
        ServerGone: "model_server_gone",
        ShuttingDown: "draining",
        UnknownModel: "model_not_found",
        NoModelNamed: "model_required",
    }
)


def http_error(error: FleetError) -> HttpError:
    """The error as the edge answers it, in whichever dialect."""
    error_type = next(ERROR_TYPES[kind] for kind in type(error).__mro__ if kind in ERROR_TYPES)
    if isinstance(error, UnknownModel):
        return HttpError(404, error_type, str(error), field="model")
    if isinstance(error, NoModelNamed):
        return HttpError(400, error_type, str(error), field="model")
    assert isinstance(error, NotNow)
    headers = {
        "retry-after": str(ceil(error.retry_after_s)),
        "retry-after-ms": str(ceil(1000 * error.retry_after_s)),
    }
    return HttpError(_UNAVAILABLE, error_type, str(error), headers=headers)


def fields_of(error: FleetError | HttpError | RouterError) -> dict[str, object]:
    """The fields of LMTP's error object."""
    if not isinstance(error, FleetError):
        return error_fields(error)
    fields = error_fields(http_error(error))
    if isinstance(error, NotNow):
        fields["retry_after_s"] = error.retry_after_s
    return fields
