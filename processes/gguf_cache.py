"""Folders that were made of GGUF files, kept for the next start: to make one takes seconds.

    ~/.cache/tandem/gguf/<key>/    a file's folder

The key is of the file as it is, and of what reads it: a changed file, or another version, has
another one. Each server gets a copy of its own, so that what is kept may go at any time.
"""

import re
import shutil
import tempfile
from contextlib import suppress
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

# What the file is, in a line; made with the folder.
DESCRIPTION = "description.txt"
_MAX_KEPT = 8
_READERS = ("tandem", "transformers", "tokenizers", "gguf")
_SOURCES = Path(__file__).parents[1] / "model_server" / "checkpoint"


_SPLIT_NAME = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")


def files_of_gguf(path: Path) -> tuple[Path, ...]:
    """All that a file was split into, by the name of one of them; or the file itself."""
    named = _SPLIT_NAME.fullmatch(path.name)
    if named is None:
        return (path,)
    stem, count = named.groups()
    numbers = range(1, 1 + int(count))
    return tuple(path.with_name(f"{stem}-{number:05}-of-{count}.gguf") for number in numbers)


class GgufCache:
    """Owner of what is kept; shared by processes."""

    def __init__(self, place: Path | None = None) -> None:
        """`place` None: below the user's home."""
        self._place = place or Path.home() / ".cache" / "tandem" / "gguf"

    def key(self, file: Path) -> str:
        """Of the file, or of all that it was split into, as they are now. Raises OSError."""
        stats = [(str(each), each.stat()) for each in files_of_gguf(file)]
        versions = [version(name) for name in _READERS]
        # Of a checkout, where the version stays and the code does not.
        sources = [path.read_bytes() for path in sorted(_SOURCES.glob("gguf_*.py"))]
        of_files = [
            (name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            for name, stat in stats
        ]
        return sha256(repr((of_files, versions, sources)).encode()).hexdigest()[:32]

    def copy_to(self, target: Path, key: str) -> bool:
        """Whether it was kept, and is in the empty folder `target` now."""
        try:
            shutil.copytree(self._place / key, target, dirs_exist_ok=True)
        # Another process may remove it meanwhile.
        except OSError:
            return False
        return True

    def keep(self, made: Path, key: str) -> None:
        """Keep a copy of a folder, whole or not at all, and the newest others. Raises OSError."""
        self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(dir=self._place))
        try:
            shutil.copytree(made, unfinished, dirs_exist_ok=True)
            unfinished.rename(self._place / key)
        except OSError:
            shutil.rmtree(unfinished, ignore_errors=True)
            # Another process may have made the same meanwhile.
            if not (self._place / key).is_dir():
                raise
        with suppress(FileNotFoundError):
            self._remove_old()

    def _remove_old(self) -> None:
        """Raises FileNotFoundError where another process does the same."""
        by_age = sorted(self._place.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for old in by_age[:-_MAX_KEPT]:
            # Who copies it finds that it is gone, and not a part of it.
            shutil.rmtree(old.rename(old.with_suffix(".old")), ignore_errors=True)
