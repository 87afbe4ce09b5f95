"""Compiles C++ on first use and loads it: once per user, source, compiler and kind of CPU.

    <cache_dir>/<name>-<key>.so      the key hashes what the result depends on
    <cache_dir>/<name>-<key>.lock    held by the one process that compiles

It knows nothing of what the library does. There are no torch headers in it, so compiling takes
seconds, and a library outlives every torch.
"""

import ctypes
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

_log = logging.getLogger(__name__)

COMPILERS = ("g++", "c++")
# Contraction to fused multiply-add is named, since a language standard may switch it off.
FLAGS = ("-std=gnu++17", "-O3", "-march=native", "-ffp-contract=fast", "-fopenmp", "-fPIC")
_TIMEOUT_S = 180.0


class NativeUnavailable(Exception):
    """The library cannot be had here: no compiler, or it fails. The text is the reason."""


def load_native(
    source: Path, cache_dir: Path | None = None, compilers: Sequence[str] = COMPILERS
) -> ctypes.CDLL:
    """Load the library of `source`, which may include the headers beside it; compile it if needed.

    `cache_dir` is made if it is missing; the default is below the user's home. Where it cannot be
    written, the library is compiled for this process alone.

    Raises NativeUnavailable.
    """
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise NativeUnavailable(f"there is no C++ compiler ({', '.join(compilers)})")
    name = f"{source.stem}-{_key(compiler, source)}"
    try:
        folder = cache_dir or _default_cache_dir()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / f"{name}.so"
        if not path.exists():
            # The system drops the lock should its holder die.
            with (folder / f"{name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    _compile(compiler, source, path)
    except (OSError, RuntimeError) as error:
        _log.info("compiling for this process alone: %s", error)
        return _load_once(compiler, source, name)
    return _open(path)


def path_of(library: ctypes.CDLL) -> Path | None:
    """Where another process finds a loaded library. None: it was compiled for this one alone."""
    path = Path(library._name)
    return path if path.exists() else None


def _load_once(compiler: str, source: Path, name: str) -> ctypes.CDLL:
    """Loads a library that nobody finds again."""
    try:
        with tempfile.TemporaryDirectory() as private:
            path = Path(private) / f"{name}.so"
            _compile(compiler, source, path)
            return _open(path)
    except OSError as error:
        raise NativeUnavailable(f"there is no place to compile in: {error}") from error


def _default_cache_dir() -> Path:
    return Path.home() / ".cache" / "tandem" / "native"


def _key(compiler: str, source: Path) -> str:
    """What the result depends on. The compiler's predefined macros under these flags tell its
    version and every instruction set of this CPU."""
    macros = _run([compiler, *FLAGS, "-dM", "-E", "-x", "c++", os.devnull])
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    digest.update(macros.encode())
    for file in sorted(source.parent.iterdir()):
        if file == source or file.suffix == ".h":
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()[:24]


def _compile(compiler: str, source: Path, path: Path) -> None:
    """Compile to another name, then rename: a reader sees the whole library or none."""
    started_s = time.monotonic()
    unfinished = path.with_suffix(".tmp")
    try:
        _run([compiler, *FLAGS, "-shared", "-o", str(unfinished), str(source)])
        unfinished.rename(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _log.info("compiled %s in %.1f s", source.name, time.monotonic() - started_s)


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if "error" in line] or ["no reason"]
        raise NativeUnavailable(f"{command[0]} failed: {lines[0]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeUnavailable(f"{command[0]} failed: {error}") from error
    return done.stdout


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} does not load: {error}") from error
