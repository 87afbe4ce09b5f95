"""Which instruction sets of a CPU libraries are compiled for, and which of them this CPU has.

amx         x86-64: avx512bf16, and tiles of bfloat16 and int8
avx512bf16  x86-64: avx512, and dot products of bfloat16 and int8
avx512      x86-64-v4
avx2        x86-64-v3
dotprod     aarch64: neon, and dot products of int8
neon        aarch64
native      whatever the compiler finds on this CPU; on any other, and where no compiler knows
            the better names
generic     what every CPU of the architecture has
"""

import ctypes
import platform
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_V3 = frozenset({"avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"})
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_BF16 = _V4 | {"avx512_bf16", "avx512_vnni"}
_AMX = _BF16 | {"amx_tile", "amx_bf16", "amx_int8"}
# Those of ARMv8.1, and the products.
_DOTPROD = frozenset({"asimdrdm", "atomics", "crc32", "asimddp"})
_X86 = frozenset({"x86_64", "amd64"})
_ARM = frozenset({"aarch64", "arm64"})
# Linux's system call and its arguments, by their names in the kernel's headers.
_ARCH_PRCTL = 158
_ARCH_REQ_XCOMP_PERM = 0x1023
_XFEATURE_XTILEDATA = 18
_BF16_FLAGS = ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """One of them: the flags of g++ for it, and what a CPU needs to run the result.

    `machines` are the names of its architecture (platform.machine()); empty: any. `cpu_flags` are
    those of Linux's /proc/cpuinfo. A library is moved to another machine only if `is_portable`.
    """

    name: str
    compiler_flags: tuple[str, ...]
    machines: frozenset[str] = frozenset()
    cpu_flags: frozenset[str] = frozenset()
    is_portable: bool = True

    def runs_on(self, machine: str, cpu_flags: Collection[str]) -> bool:
        """Whether a CPU of this architecture with these flags runs what is compiled for it."""
        return (not self.machines or machine.lower() in self.machines) and self.cpu_flags <= {
            *cpu_flags
        }


# The best first.
ALL = (
    InstructionSet("amx", (*_BF16_FLAGS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"), _X86, _AMX),
    InstructionSet("avx512bf16", _BF16_FLAGS, _X86, _BF16),
    InstructionSet("avx512", ("-march=x86-64-v4",), _X86, _V4),
    InstructionSet("avx2", ("-march=x86-64-v3",), _X86, _V3),
    InstructionSet("dotprod", ("-march=armv8.2-a+dotprod",), _ARM, _DOTPROD),
    InstructionSet("neon", (), _ARM),
    InstructionSet("native", ("-march=native",), is_portable=False),
    InstructionSet("generic", ()),
)
# Those that any arithmetic gains from. Of `amx` only code gains that was written for it.
USUAL = ("avx512bf16", "avx512", "avx2", "neon", "native")


def usable(names: Collection[str]) -> tuple[InstructionSet, ...]:
    """Those of `names` that this machine's CPU has, the best first."""
    machine = platform.machine()
    cpu_flags = _cpu_flags()
    return tuple(
        each
        for each in ALL
        if each.name in names and each.runs_on(machine, cpu_flags)
        if each.name != "amx" or _may_use_tiles()
    )


def portable(names: Collection[str]) -> tuple[InstructionSet, ...]:
    """Those of `names` that some CPU of this machine's architecture has, the best first."""
    machine = platform.machine()
    return tuple(
        each
        for each in ALL
        if each.name in names and each.is_portable and each.runs_on(machine, each.cpu_flags)
    )


def _cpu_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """Empty where the system has no such file: what needs none is left then."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2] for line in lines if line.startswith(("flags", "Features")))
    return frozenset(next(flags, "").split())


def _may_use_tiles() -> bool:
    """Ask Linux for the registers of AMX, which it gives to none but processes that ask.

    All threads of this one may use them from now on, and its forked children.
    """
    refused: int = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA)
    return refused == 0
