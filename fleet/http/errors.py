"""The fleet's errors as HTTP answers and LMTP error objects."""

from collections.abc import Mapping
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
from router.http.server.errors import HttpError

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
    """The error with its status; TGI's, OpenAI's and Anthropic's bodies come from it."""
    error_type = next(ERROR_TYPES[kind] for kind in type(error).__mro__ if kind in ERROR_TYPES)
    if isinstance(error, NotNow):
        return HttpError(503, error_type, str(error), retry_after_s=error.retry_after_s)
    status = 404 if isinstance(error, UnknownModel) else 400
    return HttpError(status, error_type, str(error), field="model")


def lmtp_error(error: FleetError | HttpError) -> dict[str, object]:
    """The fields of LMTP's error object, but for the stream's id."""
    if isinstance(error, FleetError):
        error = http_error(error)
    fields: dict[str, object] = {"error": str(error), "error_type": error.error_type}
    if error.field is not None:
        fields["field"] = error.field
    if error.retry_after_s is not None:
        fields["retry_after_s"] = error.retry_after_s
    fields["retryable"] = error.status >= 500
    return fields
