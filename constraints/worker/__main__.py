"""The zygote's command line: loads a vocabulary and forks workers on command.

python -m constraints.worker --control-fd N --tokenizer FILE --vocab-size N --end-ids 1,2
                             --max-len N --cpu-s SECONDS --memory-bytes N [--cpu-yield LIBRARY]
"""

import argparse
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from constraints.compiler import MIB, Compiler
from constraints.errors import ConstraintError
from constraints.vocabulary import Vocabulary
from constraints.warm_up import warm_up
from constraints.worker.work import Work
from native.cpu_yield import CpuYield
from native.time_slice import use_long_time_slices
from processes.zygote.zygote import Worker, Zygote

# A worker rarely sees a text twice: its owner caches results.
_MAX_CACHE_BYTES = 16 * MIB


def main(argv: Sequence[str]) -> int:
    """Serve until the owner has ended."""
    args = _parser().parse_args(argv)
    with socket.socket(fileno=args.control_fd) as control:
        try:
            vocabulary = Vocabulary.load(args.tokenizer, args.vocab_size, args.end_ids)
        except ConstraintError as error:
            control.sendall(_failed(str(error)))
            return 1
        compiler = Compiler(vocabulary, max_bytes=_MAX_CACHE_BYTES)
        work = Work(vocabulary, compiler, args.memory_bytes)
        warm_up(vocabulary)
        use_long_time_slices()  # inherited by forked workers
        worker = Worker(work, args.cpu_s, args.memory_bytes, CpuYield.at(args.cpu_yield))
        Zygote(control, worker, args.memory_bytes).run()
    return 0


def _failed(reason: str) -> bytes:
    return json.dumps({"failed": reason}).encode() + b"\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m constraints.worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, help="absent: as many as the tokenizer has")
    parser.add_argument("--end-ids", type=_ids, default=())
    parser.add_argument("--max-len", type=int, required=True)
    parser.add_argument("--cpu-s", type=float, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--cpu-yield", type=Path, help="absent: idle work does not leave its core")
    return parser


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
