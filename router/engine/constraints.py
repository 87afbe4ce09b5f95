"""Checks in worker processes whether constraints can be kept, before their requests are accepted.

Findings are remembered, refusals and texts that took too long among them, so that a text costs time
once, however often it is sent. Equal texts at the same time are checked once.

    constraint, stops -> obvious? -> remembered? -> worker -> a text -> does it fit max_new_tokens?
                                                                no: is there one that does?
"""

import asyncio
import hashlib
import json
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from constraints.errors import (
    ConstraintError,
    Contradiction,
    DoesNotFit,
    Malformed,
    NotEnforced,
    TooComplex,
)
from constraints.spec import ConstraintSpec, StopRule
from constraints.trivial_schemas import obvious_len
from constraints.verdict import Judged, Passed, Verified
from constraints.worker.jobs import Check, Judge, Verify, error_from_json, error_to_json
from constraints.worker.pool import PoolBusy, PoolRules, VocabularyFile, WorkerBug, WorkerPool
from constraints.worker.zygote_client import ZygoteFailed
from router.request.errors import ConstraintRefused, Overloaded, RouterError, Unsupported
from router.request.request import CheckedConstraint, Constraint
from router.telemetry.metrics import Metrics

_logger = logging.getLogger("router")

F = TypeVar("F")

_RETRY_AFTER_S = 2.0
_MAX_REMEMBERED = 4096
# A text for which the time was too short this often is not checked again for a while.
_NUM_CHANCES, _REST_S = 2, 60.0
# Compiling and finding a text that a step may wait for. It takes a new worker twice as long as a
# shard, where nothing is done for the first time.
_QUICK_S = 0.01
# After the pool's whole patience, what is left for the shard to compile it as well.
_PREPARE_S = 0.2

# kind, whitespace, lenient, digest of the text; then stops, length, cuts, or a digest of texts
_Key = tuple[object, ...]
_Finding = Passed | ConstraintError


class ConstraintMemory(Generic[F]):
    """Findings by key, at most `max_len`; the least recently used leaves first."""

    def __init__(self, max_len: int) -> None:
        self._max_len = max_len
        self._findings: OrderedDict[Hashable, tuple[F, float | None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._findings)

    def find(self, key: Hashable, now_s: float) -> F | None:
        """The finding; None: there is none."""
        found = self._findings.get(key)
        if found is None:
            return None
        finding, until_s = found
        if until_s is not None and until_s <= now_s:
            del self._findings[key]
            return None
        self._findings.move_to_end(key)
        return finding

    def keep(self, key: Hashable, finding: F, until_s: float | None = None) -> None:
        """Keeps a finding until a time, or as long as it is used often enough."""
        self._findings[key] = (finding, until_s)
        self._findings.move_to_end(key)
        while len(self._findings) > self._max_len:
            self._findings.popitem(last=False)


class ConstraintCheck:
    """Checks on behalf of validation. Owner of the pool of workers, and of what they found.

    `spells_ascii`: each printable character of ASCII is a token of its own, so that no text of such
    has more tokens than characters.
    """

    def __init__(
        self,
        vocabulary: VocabularyFile,
        rules: PoolRules,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
        *,
        spells_ascii: bool = False,
    ) -> None:
        self._vocabulary = vocabulary
        self._spells_ascii = spells_ascii
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._pool: WorkerPool | None = None
        self._memory: ConstraintMemory[_Finding] = ConstraintMemory(_MAX_REMEMBERED)
        self._chances: ConstraintMemory[int] = ConstraintMemory(_MAX_REMEMBERED)
        self._under_way: dict[_Key, asyncio.Task[_Finding | RouterError]] = {}

    async def start(self) -> None:
        """Starts the pool; returns before its vocabulary is loaded, and never raises."""
        self._pool = WorkerPool(self._vocabulary, self._rules)

    async def close(self) -> None:
        """Ends the workers; checks under way fail."""
        if self._pool is not None:
            await self._pool.close()

    async def check(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        *,
        cuts: bool = False,
    ) -> CheckedConstraint:
        """What is known of the constraint. With `cuts` it need not fit into `max_new_tokens`.

        Raises ConstraintRefused, Overloaded when too many checks wait, and Unsupported where this
        model's tokens cannot be constrained.
        """
        begun_s = self._clock()
        until_s = begun_s + self._rules.wait_s
        enough_len = self._obvious_len(constraint.spec, stops)
        if enough_len is not None and (cuts or enough_len <= max_new_tokens):
            self._metrics.constraint_checks.inc("look")
            return CheckedConstraint(replace(constraint, is_quick=True), enough_len)
        job = Check(constraint.spec, stops, self._vocabulary.max_len, cuts)
        is_known = self._is_known(job)
        try:
            passed = await self._find(job, until_s)
            if passed.min_len > max_new_tokens and not cuts:
                # The text that was found is too long: look for a shorter one, which takes longer.
                job = Check(constraint.spec, stops, max_new_tokens)
                is_known = is_known and self._is_known(job)
                passed = await self._find(job, until_s)
        except DoesNotFit as error:
            # Also a text that is longer than any answer may be: this one's tokens are fewer.
            max_len = min(error.max_len, max_new_tokens)
            raise self._refused(DoesNotFit(error.needed_len, max_len)) from None
        except ConstraintError as error:
            raise self._refused(error) from None
        finally:
            self._metrics.constraint_checks.inc("cache" if is_known else "worker")
            self._metrics.constraint_check_duration.observe(
                self._clock() - begun_s, constraint.spec.kind.value
            )
        return _checked(constraint, passed, until_s + _PREPARE_S)

    async def judge(self, spec: ConstraintSpec, texts: Sequence[str]) -> Judged:
        """Each of the texts under a constraint.

        Raises ConstraintRefused for the constraint, otherwise as `check`.
        """
        job = Judge(spec, tuple(texts), self._vocabulary.max_len)
        key = _key(Check(spec, StopRule(), job.max_len))
        # It may be the texts that take too long, which is no fault of the constraint's.
        own_key = _judge_key(job) if texts else key
        for each in (key, own_key):
            known = self._memory.find(each, self._clock())
            if isinstance(known, TooComplex):
                raise self._refused(known)
        try:
            judged = await self._ask(job)
        except ConstraintError as error:
            self._memory.keep(own_key, error)
            raise self._refused(error) from None
        assert isinstance(judged, Judged)
        return judged

    async def violation(self, constraint: Constraint, text: str) -> str | None:
        """A finished text's violation of a lenient schema, or why it was not checked."""
        try:
            verified = await self._ask(Verify(constraint.spec, text))
        except (ConstraintError, RouterError) as error:
            return f"the finished text could not be checked: {error}"
        assert isinstance(verified, Verified)
        return verified.violations[0] if verified.violations else None

    def _obvious_len(self, spec: ConstraintSpec, stops: StopRule) -> int | None:
        """Tokens that are enough for some text, where that is seen without compiling."""
        if self._pool is None or not self._spells_ascii or stops.strings or stops.token_ids:
            return None
        return obvious_len(spec)

    def _is_known(self, job: Check) -> bool:
        return self._memory.find(_key(job), self._clock()) is not None

    async def _find(self, job: Check, until_s: float) -> Passed:
        """Raises ConstraintError and RouterError."""
        key = _key(job)
        finding: _Finding | RouterError | None = self._memory.find(key, self._clock())
        if finding is None:
            finding = await self._look(key, job, until_s)
        if isinstance(finding, Passed):
            return finding
        if isinstance(finding, ConstraintError):
            # A new one for each request.
            raise error_from_json(error_to_json(finding))
        raise finding

    async def _look(self, key: _Key, job: Check, until_s: float) -> _Finding | RouterError:
        """What a worker finds; one checks for all equal requests, even if some are cancelled."""
        looking = self._under_way.get(key)
        if looking is None:
            looking = asyncio.create_task(self._look_once(key, job, until_s))
            self._under_way[key] = looking
            looking.add_done_callback(lambda _: self._under_way.pop(key))
        return await asyncio.shield(looking)

    async def _look_once(self, key: _Key, job: Check, until_s: float) -> _Finding | RouterError:
        try:
            passed = await self._ask(job, until_s)
        except ConstraintError as error:
            self._memory.keep(key, error)
            return error
        except Overloaded as error:
            return self._overdue(key, error)
        except RouterError as error:
            return error
        assert isinstance(passed, Passed)
        self._metrics.constraint_compile_duration.observe(passed.compile_s, job.spec.kind.value)
        # The shard that gets the translation now keeps its result for longer than this memory.
        self._memory.keep(key, replace(passed, translation=None))
        return passed

    def _overdue(self, key: _Key, error: Overloaded) -> _Finding | RouterError:
        """A text that is slow enough to fill all the time that there is, again and again."""
        if not isinstance(error.__cause__, PoolBusy) or not error.__cause__.was_tried:
            return error
        now_s = self._clock()
        num_tried = (self._chances.find(key, now_s) or 0) + 1
        self._chances.keep(key, num_tried, now_s + _REST_S)
        if num_tried < _NUM_CHANCES:
            return error
        finding = TooComplex("compiling the constraint takes more time than there is")
        self._memory.keep(key, finding, now_s + _REST_S)
        return finding

    async def _ask(
        self, job: Check | Judge | Verify, until_s: float | None = None
    ) -> Passed | Judged | Verified:
        """Raises ConstraintError and RouterError."""
        if self._pool is None:
            raise Unsupported("constraints are not served: nothing compiles them")
        wait_s = None if until_s is None else until_s - self._clock()
        try:
            return await self._pool.do(job, wait_s)
        except PoolBusy as error:
            self._metrics.constraint_refusals.inc("overloaded")
            raise Overloaded(str(error), _RETRY_AFTER_S) from error
        except ZygoteFailed as error:
            self._metrics.constraint_refusals.inc("unserved")
            raise Unsupported(f"this model's outputs cannot be constrained: {error}") from error
        except WorkerBug as error:
            _logger.error("a bug in compiling a %s:\n%s", job.spec.kind.value, error)
            raise RouterError("a bug in compiling the constraint; the server's log has more") from (
                error
            )
        finally:
            self._metrics.constraint_workers_ended.set_total(
                0 if self._pool is None else self._pool.num_ended
            )

    def _refused(self, error: ConstraintError) -> ConstraintRefused:
        refused = _refusal(error)
        self._metrics.constraint_refusals.inc(refused.reason)
        return refused


def _checked(constraint: Constraint, passed: Passed, prepare_by_s: float) -> CheckedConstraint:
    return CheckedConstraint(
        replace(
            constraint,
            dropped_phrases=passed.dropped_phrases,
            has_dead_ends=passed.has_dead_ends,
            is_quick=passed.compile_s <= _QUICK_S,
            prepare_by_s=prepare_by_s,
            translation=passed.translation,
        ),
        passed.min_len,
        passed.dropped_phrases,
        passed.not_enforced,
    )


def _key(job: Check) -> _Key:
    return (*_spec_key(job.spec), job.stops, job.max_len, job.cuts)


def _judge_key(job: Judge) -> _Key:
    return (*_spec_key(job.spec), _digest(json.dumps(job.texts)))


def _spec_key(spec: ConstraintSpec) -> _Key:
    return (spec.kind, spec.whitespace, spec.lenient, _digest(spec.text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def _refusal(error: ConstraintError) -> ConstraintRefused:
    """The library's error in the router's words."""
    match error:
        case Malformed():
            place = _given(position=error.position, pointer=error.pointer)
            return ConstraintRefused(str(error), "malformed", place)
        case NotEnforced():
            place = _given(position=error.position, pointer=error.pointer)
            return ConstraintRefused(str(error), "not_enforced", place)
        case Contradiction():
            parts = list(error.parts) or None
            return ConstraintRefused(str(error), "contradiction", _given(parts=parts))
        case DoesNotFit():
            numbers = _given(needed_len=error.needed_len, max_len=error.max_len)
            return ConstraintRefused(str(error), "does_not_fit", numbers)
        case _:
            # Also an engine that broke while it looked for the shortest text.
            return ConstraintRefused(str(error), "too_complex")


def _given(**details: object) -> dict[str, object]:
    return {name: value for name, value in details.items() if value is not None}
