"""What a worker does: the answer to each job."""

import time
import traceback
from collections.abc import Sequence
from typing import Any

from constraints.after_thought import output_state
from constraints.check import judge
from constraints.compiler import Compiler
from constraints.errors import ConstraintError, TooComplex
from constraints.results import CheckResult, VerifyResult
from constraints.schema.validation import MaskFormats, violations
from constraints.spec import MAX_SENT_CHARS, Budget, Translation
from constraints.vocabulary import Vocabulary
from constraints.worker.jobs import (
    Answer,
    Bug,
    Check,
    Job,
    Verify,
    answer_to_json,
    job_from_json,
)
from processes.zygote.frames import Frame


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
        return CheckResult(
            min_len=state.needed_len,
            dropped_phrases=language.dropped_phrases,
            not_enforced=language.not_enforced,
            compile_s=compile_s,
            has_dead_ends=state.has_dead_ends,
            translation=_short_enough(language.translation),
        )


def _short_enough(translation: Translation | None) -> Translation | None:
    """The translation if it is short enough to be sent; else None."""
    if translation is None or len(translation.grammar) > MAX_SENT_CHARS:
        return None
    return translation
