"""Compiles every C++ library ahead of its first use: when Tandem is installed, or by hand.

    python -m native.build              for this machine's CPU
    python -m native.build --portable   for every instruction set of its architecture

Prints one line, and never fails for want of a compiler: Tandem runs without, just slower.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from native.compiler import COMPILERS, NativeUnavailable, Source, find_compiler
from native.instruction_sets import InstructionSet, portable, usable
from native.library import INSTALLED_DIR

ROOT = Path(__file__).parents[1]
_PACKAGES = ("native", "model_server")


@dataclass(frozen=True, slots=True)
class Built:
    """What a build has made, or found made, and what it could not make."""

    libraries: tuple[Path, ...]
    reasons: tuple[str, ...]

    def line(self) -> str:
        """One line for whoever installs."""
        names = sorted({"-".join(path.name.split("-")[:-1]) for path in self.libraries})
        failed = f"not compiled, so Tandem is slower here: {'; '.join(sorted(set(self.reasons)))}"
        return ". ".join(
            [f"C++ libraries: {', '.join(names)}"] * bool(names) + [failed] * bool(self.reasons)
        )


def sources(root: Path = ROOT) -> list[Path]:
    """Every C++ source of Tandem; each is one library."""
    return sorted(path for package in _PACKAGES for path in (root / package).rglob("*.cpp"))


def build(
    found: Iterable[Path],
    folder: Path = INSTALLED_DIR,
    *,
    is_portable: bool = False,
    compilers: Sequence[str] = COMPILERS,
) -> Built:
    """Compile each source into `folder`, unless it is there, and remove what is of older sources.

    For the best instruction set that this CPU has; if `is_portable`, for every one of its
    architecture. Raises OSError when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [
        (source, target)
        for source in map(Source.read, found)
        for target in _targets(source, is_portable=is_portable)
    ]
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        made = list(
            threads.map(lambda each: _build_one(each[0], each[1], folder, compilers), wanted)
        )
    libraries = tuple(each for each in made if isinstance(each, Path))
    for path in set(folder.glob("*.so")) - {*libraries}:
        path.unlink(missing_ok=True)
    return Built(libraries, tuple(each for each in made if isinstance(each, str)))


def _targets(source: Source, *, is_portable: bool) -> Sequence[InstructionSet]:
    """Without `native`: its library may be on another CPU by now than it was made for."""
    if is_portable:
        return portable(source.instruction_sets)
    return [each for each in usable(source.instruction_sets) if each.is_portable][:1]


def _build_one(
    source: Source, target: InstructionSet, folder: Path, compilers: Sequence[str]
) -> Path | str:
    """The library, or why there is none."""
    path = folder / f"{source.library_name(target)}.so"
    try:
        if not path.exists():
            source.compile(find_compiler(compilers), target, path)
    except NativeUnavailable as error:
        return str(error)
    return path


def main(argv: Sequence[str]) -> int:
    built = build(sources(), is_portable="--portable" in argv)
    sys.stdout.write(built.line() + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
