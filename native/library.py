"""Finds the library of a C++ source for the best instruction set of this CPU, and loads it.

    native/built/<source>-<instruction set>-<key>.so        compiled when Tandem was installed
    <cache_dir>/<source>-<instruction set>-<key>-<key>.so   compiled on first use
    <cache_dir>/<...>.lock                                  held by the process that compiles

Keys hash what a library depends on, so an older one is never loaded for a newer source. This knows
nothing of what the libraries do. There are no torch headers in them: compiling takes seconds, and
a library outlives every torch.
"""

import ctypes
import fcntl
import logging
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from native.compiler import COMPILERS, Source, find_compiler
from native.compiler import NativeUnavailable as NativeUnavailable
from native.instruction_sets import InstructionSet, usable

_log = logging.getLogger(__name__)

INSTALLED_DIR = Path(__file__).parent / "built"


@dataclass(frozen=True, slots=True)
class Threads:
    """Threads that one library lends to another, both addresses.

    each: a function (team, num_items, item, argument) that calls item(argument, i) for every i
    """

    each: int
    team: int


def load_native(
    source: Path,
    cache_dir: Path | None = None,
    compilers: Sequence[str] = COMPILERS,
    *,
    installed_dir: Path = INSTALLED_DIR,
    only: Collection[str] | None = None,
) -> ctypes.CDLL:
    """Load the library of `source`, which may include the headers beside it; compile it if needed.

    It is that of the best instruction set which the CPU has and the source wants; of the next best
    where that one is not installed and no compiler makes it. `only` these, by name, for tests.

    `cache_dir` is made if it is missing; the default is below the user's home. Where it cannot be
    written, the library is compiled for this process alone.

    Raises NativeUnavailable with the reason for the best one.
    """
    asked = Source.read(source)
    names = [name for name in asked.instruction_sets if only is None or name in only]
    failure: NativeUnavailable | None = None
    for target in usable(names):
        installed = installed_dir / f"{asked.library_name(target)}.so"
        try:
            if installed.exists():
                library = _open(installed)
            else:
                library = _compiled(asked, target, compilers, cache_dir or _default_cache_dir())
        except NativeUnavailable as error:
            failure = failure or error
        else:
            if failure is not None:
                _log.warning("%s makes do with %s: %s", source.name, target.name, failure)
            return library
    raise failure or NativeUnavailable(f"{source.name} is for {', '.join(names)}, not this CPU")


def path_of(library: ctypes.CDLL) -> Path | None:
    """Where another process finds a loaded library. None: it was compiled for this one alone."""
    path = Path(library._name)
    return path if path.exists() else None


def instruction_set_of(library: ctypes.CDLL) -> str:
    """The name of the instruction set for which a loaded library was compiled."""
    return Path(library._name).name.split("-")[1]


def _compiled(
    source: Source, target: InstructionSet, compilers: Sequence[str], cache_dir: Path
) -> ctypes.CDLL:
    """From the cache, compiled now if it is not there. Raises NativeUnavailable."""
    compiler = find_compiler(compilers)
    name = f"{source.library_name(target)}-{source.compiler_key(compiler, target)}"
    path = cache_dir / f"{name}.so"
    try:
        cache_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            # The system drops the lock should its holder die.
            with path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not path.exists():
                    source.compile(compiler, target, path)
    except (OSError, RuntimeError) as error:
        _log.info("compiling for this process alone: %s", error)
        return _load_once(source, target, compiler, name)
    return _open(path)


def _load_once(source: Source, target: InstructionSet, compiler: str, name: str) -> ctypes.CDLL:
    """Loads a library that nobody finds again."""
    try:
        with tempfile.TemporaryDirectory() as private:
            path = Path(private) / f"{name}.so"
            source.compile(compiler, target, path)
            return _open(path)
    except OSError as error:
        raise NativeUnavailable(f"there is no place to compile in: {error}") from error


def _default_cache_dir() -> Path:
    return Path.home() / ".cache" / "tandem" / "native"


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailable(f"{path} does not load: {error}") from error
