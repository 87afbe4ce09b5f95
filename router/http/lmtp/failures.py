"""Errors as a client reads them: the fields of an error object.

`error` is a sentence, `error_type` its kind, in the words of the HTTP routes; `field` the field at
fault; `details` what a constraint's refusal says besides; `retryable` whether the same request may
succeed later, `retry_after_s` when.
"""

from router.http.errors import problem_of
from router.http.server.errors import Dialect, HttpError
from router.request.errors import ConstraintRefused, InvalidRequest, Refused, RouterError, RowFailed


def error_type_of(error: RouterError | HttpError) -> str:
    """The kind, as logs and metrics have it too."""
    return problem_of(error, Dialect.TGI).error_type


def error_fields(error: RouterError | HttpError) -> dict[str, object]:
    """The fields of an error object, but for the stream's id."""
    told: dict[str, object] = {"error": str(error), "error_type": error_type_of(error)}
    if isinstance(error, InvalidRequest | HttpError) and error.field is not None:
        told["field"] = error.field
    if isinstance(error, ConstraintRefused):
        told["details"] = {"reason": error.reason, **error.details}
    problem = problem_of(error, Dialect.TGI)
    if problem.retry_after_s is not None:
        told["retry_after_s"] = problem.retry_after_s
    told["retryable"] = _is_retryable(error)
    return told


def _is_retryable(error: RouterError | HttpError) -> bool:
    """Not what is wrong with the request, nor a row that fails by what it is."""
    if isinstance(error, HttpError):
        return error.status >= 500
    return isinstance(error, Refused) or not isinstance(error, InvalidRequest | RowFailed)
