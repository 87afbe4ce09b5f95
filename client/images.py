"""Images for a model that sees: files as the URLs that messages take."""

from base64 import b64encode
from mimetypes import guess_type
from pathlib import Path

from client.errors import BadInput

_SCHEMES = ("data:", "http://", "https://")


def image_url(source: str | Path) -> str:
    """The data: URL of a file; a URL is its own. Raises BadInput where there is no such file."""
    if isinstance(source, str) and source.startswith(_SCHEMES):
        return source
    path = Path(source).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None
    # The server looks at the bytes: the type is for people.
    kind = guess_type(path.name)[0] or "image/png"
    return f"data:{kind};base64,{b64encode(data).decode()}"
