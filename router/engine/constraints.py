"""Constraints before their requests run: checked in worker processes, then compiled by the shards.

Findings are remembered, refusals and texts that took too long among them, so that a text costs time
once, however often it is sent. Equal texts at the same time are checked once.

    constraint, stops -> remembered? -> worker -> a text -> does it fit max_new_tokens?
                                                                no: is there one that does?

What is accepted is compiled by rank 0 beside the running steps before its request enters one, so
that no step stands still for it. Quick ones are not waited for: the first step of their request
compiles them beside its forward.
"""

import asyncio
import hashlib
import json
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Generic, TypeVar

from constraints.errors import (
    ConstraintError,
    Contradiction,
    DoesNotFit,
    Malformed,
    NotEnforced,
    TooComplex,
)
from constraints.spec import (
    CheckResult,
    ConstraintSpec,
    JudgeResult,
    Kind,
    StopRule,
    ThoughtRule,
    VerifyResult,
)
from constraints.worker.jobs import Check, Judge, Verify, error_from_json, error_to_json
from constraints.worker.pool import PoolBusy, PoolRules, VocabularyFile, WorkerBug, WorkerPool
from processes.zygote.client import ZygoteFailed
from router.engine.admission import KeyLimits
from router.engine.observer import StepObserver
from router.request.errors import (
    ConstraintRefused,
    Overloaded,
    RouterError,
    ShardFailed,
    Unsupported,
)
from router.request.request import NO_KEY, ApiKey, Constraint
from router.shards.shards import Shards
from router.telemetry.metrics import Metrics

_logger = logging.getLogger("router")

F = TypeVar("F")

_RETRY_AFTER_S = 2.0
_MAX_REMEMBERED = 4096
# A text for which the time was too short this often is not checked again for a while.
_NUM_CHANCES = 2
_REST_S = 60.0
# Compiling and finding a text that a step may wait for. It takes a new worker twice as long as a
# shard, where nothing is done for the first time.
_QUICK_S = 0.01
# After the pool's whole patience, what is left for the shard to compile it as well.
_PREPARE_S = 0.2
# Of those that the shards hold: far fewer than they keep, and none that is long, of which they keep
# fewer.
_MAX_KNOWN = 64
_MAX_KNOWN_CHARS = 8192
# A machine that computes with all of its cores makes the start of the workers long; where they do
# not come at all, no request waits for them later.
_START_S = 30.0
_REASONS: Mapping[type[ConstraintError], str] = MappingProxyType(
    {
        Malformed: "malformed",
        NotEnforced: "not_enforced",
        Contradiction: "contradiction",
        DoesNotFit: "does_not_fit",
    }
)

# kind, whitespace, switches, digest of the text; then stops, length, cuts, thought, or a
# digest of texts
_Key = tuple[object, ...]
_Finding = CheckResult | ConstraintError


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
        keys: KeyLimits | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._spells_ascii = spells_ascii
        self._keys = keys or KeyLimits()
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._pool: WorkerPool | None = None
        self._starting: asyncio.Task[None] | None = None
        # Until it is found that nothing compiles for this vocabulary.
        self._is_readable = True
        self._memory: ConstraintMemory[_Finding] = ConstraintMemory(_MAX_REMEMBERED)
        self._chances: ConstraintMemory[int] = ConstraintMemory(_MAX_REMEMBERED)
        self._under_way: dict[_Key, asyncio.Task[_Finding | RouterError]] = {}

    async def start(self, pool: WorkerPool | None = None) -> None:
        """Starts the pool, or takes over one of the same vocabulary and rules that runs.

        Returns before its vocabulary is loaded, and never raises.
        """
        self._pool = WorkerPool(self._vocabulary, self._rules) if pool is None else pool
        self._starting = asyncio.create_task(self._wait_started(self._pool))

    async def close(self) -> None:
        """Ends the workers; checks under way fail."""
        if self._starting is not None:
            self._starting.cancel()
        if self._pool is not None:
            await self._pool.close()

    async def check(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        key: ApiKey = NO_KEY,
        thought: ThoughtRule | None = None,
    ) -> Constraint:
        """The constraint with what is known of it; where it `cuts` it need not fit.

        `thought`: what comes before its text, and has to fit as well.

        Raises ConstraintRefused, Overloaded when too many checks wait, RateLimited when the key has
        had its time, and Unsupported where this model's tokens cannot be constrained.
        """
        try:
            return await self._passed(constraint, stops, max_new_tokens, key, thought)
        except ConstraintError as error:
            if not constraint.may_relax or not isinstance(error, NotEnforced | TooComplex):
                raise self._refused(error, constraint.remedy) from None
        spec = replace(constraint.spec, lenient=True)
        relaxed = replace(constraint, spec=spec, may_relax=False)
        return await self.check(relaxed, stops, max_new_tokens, key, thought)

    async def _passed(
        self,
        constraint: Constraint,
        stops: StopRule,
        max_new_tokens: int,
        key: ApiKey,
        thought: ThoughtRule | None,
    ) -> Constraint:
        """As `check`, but raises the library's own errors of a constraint."""
        cuts = constraint.cuts
        # What it needs does not depend on the most that it may have.
        thought = None if thought is None else replace(thought, max_len=None)
        await self.until_started()
        enough_len = self._enough_len(constraint.spec, thought)
        if enough_len is not None and (cuts or enough_len <= max_new_tokens):
            self._metrics.constraint_checks.inc("look")
            return replace(constraint, is_quick=True, min_len=enough_len)
        begun_s = self._clock()
        until_s = begun_s + self._rules.wait_s
        job = Check(constraint.spec, stops, self._vocabulary.max_len, cuts, thought)
        is_known = self._is_known(job)
        if not is_known:
            self._keys.check_constraint(key, begun_s)
        try:
            passed = await self._find(job, until_s)
            if passed.min_len > max_new_tokens and not cuts:
                # The text that was found is too long: look for a shorter one, which takes longer.
                job = Check(constraint.spec, stops, max_new_tokens, thought=thought)
                is_known = is_known and self._is_known(job)
                passed = await self._find(job, until_s)
        except DoesNotFit as error:
            # Also a text that is longer than any answer may be: this one's tokens are fewer.
            max_len = min(error.max_len, max_new_tokens)
            raise DoesNotFit(error.needed_len, max_len) from None
        finally:
            self._metrics.constraint_checks.inc("cache" if is_known else "worker")
            if not is_known:
                self._charge(key, begun_s)
            self._metrics.constraint_check_duration.observe(
                self._clock() - begun_s, constraint.spec.kind.value
            )
        return replace(
            constraint,
            dropped_phrases=passed.dropped_phrases,
            has_dead_ends=passed.has_dead_ends,
            is_quick=passed.compile_s <= _QUICK_S,
            prepare_by_s=until_s + _PREPARE_S,
            translation=passed.translation,
            min_len=passed.min_len,
            not_enforced=tuple(dict.fromkeys((*constraint.not_enforced, *passed.not_enforced))),
        )

    async def judge(
        self,
        spec: ConstraintSpec,
        texts: Sequence[str],
        client: ApiKey = NO_KEY,
        *,
        remedy: str = "",
    ) -> JudgeResult:
        """Each of the texts under a constraint.

        Raises ConstraintRefused for the constraint, with its `remedy`, otherwise as `check`.
        """
        job = Judge(spec, tuple(texts), self._vocabulary.max_len)
        key = _key(Check(spec, StopRule(), job.max_len))
        # It may be the texts that take too long, which is no fault of the constraint's.
        own_key = (*_spec_key(spec), _digest(json.dumps(job.texts))) if texts else key
        for each in (key, own_key):
            known = self._memory.find(each, self._clock())
            if isinstance(known, TooComplex):
                raise self._refused(known)
        await self.until_started()
        begun_s = self._clock()
        self._keys.check_constraint(client, begun_s)
        try:
            judged = await self._ask(job)
        except ConstraintError as error:
            # A copy: the traceback of this one holds the constraint's text.
            self._memory.keep(own_key, error_from_json(error_to_json(error)))
            raise self._refused(error, remedy) from None
        finally:
            self._charge(client, begun_s)
        assert isinstance(judged, JudgeResult)
        return judged

    async def _wait_started(self, pool: WorkerPool) -> None:
        try:
            await asyncio.wait_for(pool.wait_ready(), _START_S)
        except ZygoteFailed:
            self._is_readable = False
        except TimeoutError:
            pass  # they may still come; a check has a patience of its own

    async def until_started(self) -> None:
        """The patience for a check begins when there are workers; whether any come, it finds."""
        if self._starting is not None and not self._starting.done():
            await asyncio.wait({self._starting})

    def _charge(self, key: ApiKey, begun_s: float) -> None:
        """What a worker may have taken of the time: others' constraints may have been before it."""
        now_s = self._clock()
        self._keys.spend(key, now_s, constraint_s=min(now_s - begun_s, self._rules.cpu_s))

    async def violation(self, constraint: Constraint, text: str) -> str | None:
        """A finished text's violation of a lenient schema, or why it was not checked."""
        for part in constraint.judged(text):
            try:
                verified = await self._ask(Verify(part.spec, part.text))
            except (ConstraintError, RouterError) as error:
                return f"the finished text could not be checked: {error}"
            assert isinstance(verified, VerifyResult)
            if verified.violations:
                place = f"{part.name}: " if part.name else ""
                return f"{place}{verified.violations[0]}"
        return None

    def _enough_len(self, spec: ConstraintSpec, thought: ThoughtRule | None) -> int | None:
        """Tokens that are enough for an answer without a rule behind a thought; None: unknown."""
        is_sure = self._pool is not None and self._is_readable and self._spells_ascii
        closer = thought.closer if thought is not None and thought.is_begun else ""
        is_plain = closer.isascii() and closer.isprintable()
        return len(closer) if spec.kind is Kind.TEXT and is_sure and is_plain else None

    def _is_known(self, job: Check) -> bool:
        return self._memory.find(_key(job), self._clock()) is not None

    async def _find(self, job: Check, until_s: float) -> CheckResult:
        """Raises ConstraintError and RouterError."""
        key = _key(job)
        finding: _Finding | RouterError | None = self._memory.find(key, self._clock())
        if finding is None:
            # One looks for all equal requests, even if some are cancelled.
            looking = self._under_way.get(key)
            if looking is None:
                looking = asyncio.create_task(self._look(key, job, until_s))
                self._under_way[key] = looking
                looking.add_done_callback(lambda _: self._under_way.pop(key))
            finding = await asyncio.shield(looking)
        if isinstance(finding, CheckResult):
            return finding
        if isinstance(finding, ConstraintError):
            # A new one for each request.
            raise error_from_json(error_to_json(finding))
        raise finding

    async def _look(self, key: _Key, job: Check, until_s: float) -> _Finding | RouterError:
        try:
            passed = await self._ask(job, until_s)
        except ConstraintError as error:
            # A copy: the traceback of this one holds the constraint's text.
            refusal = error_from_json(error_to_json(error))
            self._memory.keep(key, refusal)
            return refusal
        except Overloaded as error:
            return self._overdue(key, error)
        except RouterError as error:
            return error
        assert isinstance(passed, CheckResult)
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
    ) -> CheckResult | JudgeResult | VerifyResult:
        """Raises ConstraintError and RouterError."""
        pool = self._pool
        if pool is None:
            raise Unsupported("constraints are not served: nothing compiles them")
        wait_s = None if until_s is None else until_s - self._clock()
        try:
            return await pool.do(job, wait_s)
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
            self._metrics.constraint_workers_ended.set_total(pool.num_ended)

    def _refused(self, error: ConstraintError, remedy: str = "") -> ConstraintRefused:
        """The library's error in the router's words, with its numbers and places.

        `remedy`: how a schema that cannot be enforced may be taken.
        """
        advice = f"; {remedy}" if remedy and isinstance(error, NotEnforced) else ""
        details = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(error).items()
            if value not in (None, ())
        }
        # An engine that broke while it looked for the shortest text counts as too complex.
        reason = _REASONS.get(type(error), "too_complex")
        self._metrics.constraint_refusals.inc(reason)
        return ConstraintRefused(f"{error}{advice}", reason, details)


def _key(job: Check) -> _Key:
    return (*_spec_key(job.spec), job.stops, job.max_len, job.may_truncate, job.thought)


def _spec_key(spec: ConstraintSpec) -> _Key:
    switches = (spec.lenient, spec.is_part, spec.any_key_order, spec.strict)
    return (spec.kind, spec.whitespace, switches, _digest(spec.text))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Preparing:
    """Has the shards compile constraints ahead of the first step of their requests.

    Requests with the same constraint wait for it together. The last few that were compiled are not
    sent again.
    """

    def __init__(
        self, shards: Shards, observer: StepObserver, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shards = shards
        self._observer = observer
        self._clock = clock
        # The calls under way, each with the number of requests that wait for it.
        self._compiling: dict[ConstraintSpec, asyncio.Task[None]] = {}
        self._num_waiting: Counter[ConstraintSpec] = Counter()
        self._known: ConstraintMemory[bool] = ConstraintMemory(_MAX_KNOWN)

    def is_ready(self, constraint: Constraint) -> bool:
        """True for one that the shard has, or compiles quickly."""
        return constraint.is_quick or self._known.find(constraint.spec, 0.0) is not None

    def forget(self) -> None:
        """The shards were reset, and may have none."""
        self._known = ConstraintMemory(_MAX_KNOWN)

    async def compiled(self, constraint: Constraint) -> None:
        """Until the shards have it; a call for which nobody waits any more is cancelled.

        Raises as `Shards.prepare`, but not ShardFailed: a shard that does not answer at all is not
        the constraint's fault. Its request then waits with all others for the shards to be reset,
        and its first step compiles what is missing.
        """
        spec = constraint.spec
        if spec not in self._compiling:
            self._compiling[spec] = asyncio.create_task(self._compile(constraint))
        compiling = self._compiling[spec]
        self._num_waiting[spec] += 1
        try:
            await asyncio.shield(compiling)
        finally:
            self._num_waiting[spec] -= 1
            if not self._num_waiting[spec]:
                del self._num_waiting[spec]
                del self._compiling[spec]
                compiling.cancel()

    async def _compile(self, constraint: Constraint) -> None:
        begun_s = self._clock()
        try:
            prepared = await self._shards.prepare(constraint)
        except ShardFailed:
            return
        self._observer.prepared(prepared, self._clock() - begun_s)
        if len(constraint.spec.text) <= _MAX_KNOWN_CHARS:
            self._known.keep(constraint.spec, True)


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
