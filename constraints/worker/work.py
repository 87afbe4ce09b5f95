"""The main loop of a worker: runs one job after the other, each with a CPU limit."""

import json
import socket
import time
import traceback
from typing import Protocol

import numpy as np

from constraints.after_thought import output_state
from constraints.check import judge
from constraints.errors import ConstraintError, EngineFailed, TooComplex
from constraints.matcher import Language
from constraints.results import CheckResult, VerifyResult
from constraints.schema.validation import MaskFormats, violations
from constraints.spec import MAX_SENT_CHARS, Budget, ConstraintSpec, Translation
from constraints.vocabulary import Vocabulary
from constraints.worker import zygote
from constraints.worker.jobs import (
    HEADER,
    Answer,
    Bug,
    Check,
    Job,
    Verify,
    answer_to_json,
    frame,
    job_from_json,
)
from native.cpu_yield import CpuYield

# Memory that stays allocated reduces the next job's limit, so a worker leaves in time.
_OLD_PART = 4
# If compiling takes longer, the masks of so many tokens are made, too; they take little in
# comparison.
_FOLLOWED_FROM_S = 0.01
_MAX_FOLLOWED = 64


class Compiles(Protocol):
    """The interface of `constraints.compiler.Compiler` that a worker uses."""

    def compile(self, spec: ConstraintSpec) -> Language:
        """The language of `spec`. Raises ConstraintError."""


class Work:
    """Runs jobs for one vocabulary.

    cpu_s:        CPU seconds of a job
    memory_bytes: the growth of the process; the kernel enforces it, see `limits`
    cpu_yield:    makes idle work leave its core regularly, see `native/cpu_yield.py`
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        compiler: Compiles,
        cpu_s: float,
        memory_bytes: int,
        cpu_yield: CpuYield,
    ) -> None:
        self._vocabulary = vocabulary
        self._compiler = compiler
        self._cpu_s = cpu_s
        self._memory_bytes = memory_bytes
        self._cpu_yield = cpu_yield

    def serve(self, channel: socket.socket) -> None:
        """Answer jobs until the channel closes, or until this process has to leave.

        Each answer has `leaves`, whether the process leaves, and `used_s`, its total CPU time.
        """
        start_bytes = zygote.address_space_bytes() or 0
        is_old = False
        while not is_old and (job := _receive(channel)) is not None:
            zygote.limit_cpu(self._cpu_s)
            with self._cpu_yield.yielding():
                answer = self.answer(job)
            zygote.limit_cpu(0.0)
            grown_bytes = (zygote.address_space_bytes() or 0) - start_bytes
            is_old = _OLD_PART * grown_bytes > self._memory_bytes
            answer_fields = answer_to_json(answer) | {
                "leaves": is_old,
                "used_s": time.process_time(),
            }
            channel.sendall(frame(answer_fields))

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
            return VerifyResult(tuple(map(str, violations(job.spec.text, job.text, MaskFormats()))))
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
        if compile_s > _FOLLOWED_FROM_S:
            _follow(language, self._vocabulary)
        return CheckResult(
            min_len=state.needed_len,
            dropped_phrases=language.dropped_phrases,
            not_enforced=language.not_enforced,
            compile_s=compile_s,
            has_dead_ends=state.has_dead_ends,
            translation=_short_enough(language.translation),
        )


def _follow(language: Language, vocabulary: Vocabulary) -> None:
    """Make the masks of the first text found. Raises TooComplex.

    An engine may compile a constraint that it then cannot follow; this detects it in advance.
    """
    translation = language.translation
    if translation is None or translation.completion is None:
        return
    matcher = language.matcher()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    try:
        for token_id in translation.completion[:_MAX_FOLLOWED]:
            matcher.fill_mask(row)
            matcher.advance(token_id)
    except EngineFailed as error:
        raise TooComplex(f"the constraint cannot be followed: {error}") from error


def _short_enough(translation: Translation | None) -> Translation | None:
    """The translation if it is short enough to be sent; else None."""
    if translation is None or len(translation.grammar) > MAX_SENT_CHARS:
        return None
    return translation


def _receive(channel: socket.socket) -> Job | None:
    header = _read(channel, HEADER.size)
    if header is None:
        return None
    body = _read(channel, HEADER.unpack(header)[0])
    return None if body is None else job_from_json(json.loads(body))


def _read(channel: socket.socket, num_bytes: int) -> bytes | None:
    """Read so many bytes; None: the channel was closed before."""
    parts = []
    while num_bytes:
        part = channel.recv(min(num_bytes, 1 << 20))
        if not part:
            return None
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)
