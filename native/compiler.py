"""How one C++ source is compiled, for one instruction set, and what the result depends on.

A source is one library, with the headers beside it. How it wants to be compiled stands in a line of
its own, at its begin:

    // build: -fopenmp -ffp-contract=off             for the usual instruction sets, so compiled
    // build: amx avx512bf16 avx2 -ffp-contract=off  for these
    // build: generic                                once: its speed is no matter

Without the line: the usual ones, OpenMP, and contraction to fused multiply-add, which is named
since a language standard may switch it off.
"""

import hashlib
import logging
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from native.instruction_sets import ALL, USUAL, InstructionSet

_log = logging.getLogger(__name__)

COMPILERS = ("g++", "c++")
_FLAGS = ("-std=gnu++17", "-O3", "-fPIC")
_BUILD_LINE = re.compile(r"^// build: (.*)$", re.MULTILINE)
_DEFAULT_BUILD = "-fopenmp -ffp-contract=fast"
# A compiler that hangs: where the machine has much else to do, one of ours takes minutes.
_TIMEOUT_S = 3600.0


class NativeUnavailable(Exception):
    """The library cannot be had here: no compiler, or it fails. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Source:
    """A C++ source, the names of its instruction sets, and its flags."""

    path: Path
    instruction_sets: tuple[str, ...]
    flags: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> "Source":
        """Raises ValueError for a name in its build line that is no instruction set."""
        line = _BUILD_LINE.search(path.read_text())
        words = (line[1] if line else _DEFAULT_BUILD).split()
        names = tuple(word for word in words if not word.startswith("-"))
        known = [each.name for each in ALL]
        if unknown := [name for name in names if name not in known]:
            raise ValueError(f"{path}: {unknown[0]} is none of {', '.join(known)}")
        return cls(path, names or USUAL, tuple(word for word in words if word.startswith("-")))

    def library_name(self, target: InstructionSet) -> str:
        """The file's name begins so: source, instruction set, and a hash of all that we wrote."""
        digest = hashlib.sha256(" ".join(self._arguments(target)).encode())
        for file in sorted(self.path.parent.iterdir()):
            if file == self.path or file.suffix == ".h":
                digest.update(file.name.encode() + file.read_bytes())
        return f"{self.path.stem}-{target.name}-{digest.hexdigest()[:16]}"

    def compiler_key(self, compiler: str, target: InstructionSet) -> str:
        """A hash of what else the result depends on: the predefined macros under these flags tell
        the compiler's version and, for `native`, every instruction set of this CPU.

        Raises NativeUnavailable when the compiler does not know the flags.
        """
        command = [compiler, *self._arguments(target), "-dM", "-E", "-x", "c++", os.devnull]
        return hashlib.sha256(f"{compiler} {_run(command)}".encode()).hexdigest()[:16]

    def compile(self, compiler: str, target: InstructionSet, path: Path) -> None:
        """Compile to another name, then rename: a reader sees the whole library or none.

        Raises NativeUnavailable and OSError.
        """
        started_s = time.monotonic()
        unfinished = path.with_suffix(f".tmp{os.getpid()}")
        arguments = self._arguments(target)
        try:
            _run([compiler, *arguments, "-shared", "-o", str(unfinished), str(self.path)])
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
        took_s = time.monotonic() - started_s
        _log.info("compiled %s for %s in %.1f s", self.path.name, target.name, took_s)

    def _arguments(self, target: InstructionSet) -> tuple[str, ...]:
        return (*_FLAGS, *target.compiler_flags, *self.flags)


def find_compiler(compilers: Sequence[str] = COMPILERS) -> str:
    """The first that there is. Raises NativeUnavailable."""
    compiler = next(filter(None, map(shutil.which, compilers)), None)
    if compiler is None:
        raise NativeUnavailable(f"there is no C++ compiler ({', '.join(compilers)})")
    return compiler


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
