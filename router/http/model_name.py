"""The names under which clients ask for the served model."""

from router.http.errors import model_not_found
from router.http.operations.server_info import ServerInfo

# What clients send that know of one model only: TGI's and the hub's.
_PLACEHOLDERS = (None, "", "tgi", "dummy")


def served_name(info: ServerInfo, asked: str | None) -> str:
    """The name to tell back. Raises HttpError (404) for the name of another model."""
    if asked is not None and asked in info.model_names:
        return asked
    if asked in _PLACEHOLDERS:
        return info.model_names[0]
    raise model_not_found(str(asked))
