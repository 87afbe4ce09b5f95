"""The zygote's command line: loads a vocabulary and forks workers on command; and what they do.

python -m constraints.worker --control-fd N --tokenizer FILE --vocab-size N --end-ids 1,2
                             --cpu-s SECONDS --memory-bytes N [--cpu-yield LIBRARY]
"""

import argparse
import json
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from constraints.after_thought import output_state
from constraints.check import judge
from constraints.compiler import MIB, Compiler
from constraints.errors import ConstraintError, TooComplex
from constraints.schema.validation import MaskFormats, violations
from constraints.spec import MAX_SENT_CHARS, Budget, CheckResult, VerifyResult
from constraints.vocabulary import Vocabulary
from constraints.warm_up import warm_up
from constraints.worker.jobs import Answer, Bug, Check, Job, Verify, answer_to_json, job_from_json
from native.cpu_yield import CpuYield
from native.time_slice import use_long_time_slices
from processes.zygote.frames import Frame
from processes.zygote.zygote import Worker, Zygote

# A worker rarely sees a text twice: its owner caches results.
_MAX_CACHE_BYTES = 16 * MIB


class Work:
    """Runs jobs for one vocabulary.

    memory_bytes: what a job may take, which others enforce
    """

    def __init__(self, vocabulary: Vocabulary, compiler: Compiler, memory_bytes: int) -> None:
        self._vocabulary = vocabulary
        self._compiler = compiler
        self._memory_bytes = memory_bytes

    def answer_frame(self, job: Frame) -> tuple[dict[str, Any], Sequence[bytes]]:
        """As JSON; there are no data."""
        return answer_to_json(self.answer(job_from_json(job.fields))), ()

    def answer(self, job: Job) -> Answer:
        """The answer to a job; errors are answers, too."""
        try:
            return self._answer(job)
        except ConstraintError as error:
            return error
        except MemoryError:
            mib = self._memory_bytes >> 20
            return TooComplex(f"compiling the constraint takes more than the {mib} MiB allowed")
        except RecursionError:
            return TooComplex("the constraint is nested too deeply")
        except BaseException as error:  # noqa: BLE001 (engines panic with what is no Exception)
            return Bug("".join(traceback.format_exception(error)))

    def _answer(self, job: Job) -> Answer:
        if isinstance(job, Verify):
            return VerifyResult(violations(job.spec.text, job.text, MaskFormats()))
        started_s = time.process_time()
        language = self._compiler.compile(job.spec)
        if not isinstance(job, Check):
            return judge(language, self._vocabulary, job.spec, job.texts, job.max_len)
        # Raises Contradiction with the stop strings, DoesNotFit, TooComplex.
        state = output_state(
            language,
            self._vocabulary,
            Budget(job.max_len, may_truncate=job.may_truncate),
            job.stops,
            job.thought,
        )
        compile_s = time.process_time() - started_s
        translation = language.translation
        if translation is not None and len(translation.grammar) > MAX_SENT_CHARS:
            translation = None
        return CheckResult(
            min_len=state.needed_len,
            dropped_phrases=language.dropped_phrases,
            not_enforced=language.not_enforced,
            compile_s=compile_s,
            has_dead_ends=state.has_dead_ends,
            translation=translation,
        )


def main(argv: Sequence[str]) -> int:
    """Serve until the owner has ended."""
    args = _parser().parse_args(argv)
    with socket.socket(fileno=args.control_fd) as control:
        try:
            vocabulary = Vocabulary.load(args.tokenizer, args.vocab_size, args.end_ids)
        except ConstraintError as error:
            control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
            return 1
        compiler = Compiler(vocabulary, max_bytes=_MAX_CACHE_BYTES)
        work = Work(vocabulary, compiler, args.memory_bytes)
        warm_up(vocabulary)
        use_long_time_slices()  # inherited by forked workers
        worker = Worker(work, args.cpu_s, args.memory_bytes, CpuYield.at(args.cpu_yield))
        Zygote(control, worker, args.memory_bytes).run()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m constraints.worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, help="absent: as many as the tokenizer has")
    parser.add_argument("--end-ids", type=_ids, default=())
    parser.add_argument("--cpu-s", type=float, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--cpu-yield", type=Path, help="absent: idle work does not leave its core")
    return parser


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
