"""Compiles kernels for GPUs that are not at hand, and reads from the machine code what they use.

A function of launches.py calls launchers as the product does, on tensors of the device "meta" and
with the recorder as their `launch`:

    def attention(recorder: Recorder) -> None:
        with recorder.case("head_dim 128"):
            TritonAttention(launch=recorder).read(cache, query, step, options)

A test asks for `compiled("attention", 90)`. To read the code takes as long as to compile it.
Kernels are compiled in a process of their own, since Triton's interpreter, which the other tests
need, is chosen at import.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import triton
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend, GPUTarget
from triton.compiler import ASTSource

# By day that of most machines, for attention; others and other kernels, which take long, at night.
TARGETS = (
    90,
    pytest.param(80, marks=pytest.mark.nightly),
    pytest.param(100, marks=pytest.mark.nightly),
)
# Bytes of shared memory that one program may take, by the CUDA programming guide.
SHARED_LIMITS = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}

_ROOT = Path(__file__).parents[2]
_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_PATTERNS = {
    "num_mma": r"\bHMMA\b|\bIMMA\b|\bHMMA\.|\bIMMA\.",
    "num_wgmma": r"\bHGMMA\b|\bIGMMA\b|\bHGMMA\.|\bIGMMA\.",
    "num_tcgen05": r"\bUTC\w*MMA",
    "num_wide_loads": r"\bLDG[\w.]*\.128|\bLDGSTS[\w.]*\.128",
    "num_wide_stores": r"\bSTG[\w.]*\.128",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One launch: the kernel, the types that Triton would specialise it for, and its options.

    Signature, constants and hints are by the index of the kernel's parameter.
    """

    label: str
    kernel: Any
    signature: dict[int, str]
    constants: dict[int, Any]
    aligned: tuple[int, ...]  # pointers and integers that are multiples of 16
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel uses on one architecture; instructions are counted in the machine code.

    `local_bytes`: memory of a thread beside its registers, which is where these are spilled
    """

    kernel: str
    label: str
    architecture: int  # 80 is sm_80
    num_registers: int
    local_bytes: int
    shared_bytes: int
    num_mma: int
    num_wgmma: int
    num_tcgen05: int
    num_wide_loads: int  # of 16 bytes, from global memory
    num_wide_stores: int

    @property
    def num_matrix_ops(self) -> int:
        """Matrix instructions of any kind."""
        return self.num_mma + self.num_wgmma + self.num_tcgen05


class Recorder:
    """A Launch that notes launches instead of making them; equal ones count once."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self._label = ""

    @contextmanager
    def case(self, label: str) -> Iterator[None]:
        """Name the launches inside."""
        self._label = label
        yield

    def __call__(self, kernel: Any, grid: tuple[int, ...], /, *args: Any, **constants: Any) -> None:
        """See Launch."""
        names = kernel.arg_names
        options = {name: value for name, value in constants.items() if name not in names}
        options.setdefault("enable_fp_fusion", True)  # as launch() does
        by_index = {names.index(n): value for n, value in constants.items() if n in names}
        signature = dict.fromkeys(by_index, "constexpr")
        aligned = []
        for index, argument in enumerate(args):
            kind, hints = _specialised(kernel.params[index], argument)
            signature[index] = kind
            if kind == "constexpr":
                by_index[index] = argument
            elif hints and "D" in hints:
                aligned.append(index)
        if len(signature) != len(names):
            raise TypeError(f"{kernel.__name__} was launched with {len(signature)} of {names}")
        case = Case(self._label, kernel, signature, by_index, tuple(aligned), options)
        if case not in self.cases:
            self.cases.append(case)


@cache
def compiled(
    launches: str, architecture: int, *, counts_instructions: bool = True
) -> tuple[Compiled, ...]:
    """The cases of a function of launches.py, compiled for one architecture; once for all tests.

    One whose label begins with "sm_90" is compiled for that architecture alone.
    """
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            __name__,
            launches,
            str(int(counts_instructions)),
            str(architecture),
        ],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise AssertionError(f"{launches} does not compile:\n{finished.stderr[-4000:]}")
    return tuple(Compiled(**row) for row in json.loads(finished.stdout))


def compile_case(case: Case, architecture: int, *, counts_instructions: bool) -> Compiled:
    """Compile a launch and read its machine code."""
    names = case.kernel.arg_names
    source = ASTSource(
        case.kernel,
        signature={names[index]: kind for index, kind in sorted(case.signature.items())},
        constexprs={(index,): value for index, value in case.constants.items()},
        attrs={(index,): [["tt.divisibility", 16]] for index in case.aligned},
    )
    target = GPUTarget("cuda", architecture, 32)
    built = triton.compile(source, target=target, options=case.options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
        code = _tool("nvdisasm", "-c", file.name) if counts_instructions else ""
    used = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    if used is None:
        raise ValueError(f"cuobjdump names no registers: {usage}")
    return Compiled(
        kernel=case.kernel.__name__,
        label=case.label,
        architecture=architecture,
        num_registers=int(used[1]),
        local_bytes=int(used[2]) + int(used[3]),
        shared_bytes=built.metadata.shared,
        **{name: len(re.findall(pattern, code)) for name, pattern in _PATTERNS.items()},
    )


def _specialised(parameter: Any, argument: Any) -> tuple[str, str | None]:
    """The type of an argument and its hints, as Triton's own launcher finds them."""
    kind, hints = native_specialize_impl(
        BaseBackend,
        argument,
        parameter.is_const,
        not parameter.do_not_specialize,
        not parameter.do_not_specialize_on_alignment,
    )
    return kind, hints if isinstance(hints, str) else None


def _tool(name: str, *arguments: str) -> str:
    return subprocess.run(
        [_TOOLS / name, *arguments], capture_output=True, text=True, check=True
    ).stdout


def main(launches: str, counts: str, architecture: str) -> None:
    """Print the compiled cases of a function of launches.py as JSON."""
    recorder = Recorder()
    getattr(import_module("tests.kernels.launches"), launches)(recorder)
    rows = [
        compile_case(case, int(architecture), counts_instructions=counts == "1")
        for case in recorder.cases
        if architecture == "90" or not case.label.startswith("sm_90")
    ]
    json.dump([asdict(row) for row in rows], sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
