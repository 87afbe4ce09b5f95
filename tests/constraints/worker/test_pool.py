"""The pool over real processes: what it answers, what it survives, and who gets how much."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from constraints.errors import ConstraintError, Contradiction, Malformed, TooComplex
from constraints.spec import CheckResult, ConstraintSpec, JudgeResult, Kind
from constraints.worker.jobs import Check, Judge
from constraints.worker.pool import PoolBusy, PoolRules, VocabularyFile, WorkerPool
from native.time_slice import slice_ns
from processes.zygote.client import IdleWorkers, Program, ZygoteClient, ZygoteFailed
from tests.constraints.worker.pools import (
    MAX_LEN,
    children_of,
    costly,
    num_sockets,
    pooling,
    regex,
    vocabulary_file,
    zygotes,
)
from tests.native.compiler import needs_compiler
from tests.native.kernel import needs_slices
from tests.router.rig import until

# Half a second of computing, or more.
_COSTLY = costly()


def num_pauses(pid: int) -> int:
    """How often a process gave its core up by itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def computed_s(pid: int) -> float:
    """How long a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) / os.sysconf("SC_CLK_TCK")


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.asyncio(loop_scope="class")
class TestOnePool:
    """What is asked of one pool, one after the other."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    async def pool(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerPool]:
        async with pooling(tmp_path_factory.mktemp("model")) as pool:
            yield pool

    async def test_what_can_be_kept_passes_with_the_length_of_a_text(
        self, pool: WorkerPool
    ) -> None:
        passed = await pool.do(regex("ab{3}"))
        assert isinstance(passed, CheckResult)
        assert passed.min_len == 4
        assert passed.dropped_phrases == passed.not_enforced == ()

    async def test_what_is_wrong_with_a_constraint_is_raised_as_it_was_found(
        self, pool: WorkerPool
    ) -> None:
        with pytest.raises(Malformed) as malformed:
            await pool.do(regex("a["))
        assert malformed.value.position == 1
        with pytest.raises(Contradiction):
            await pool.do(
                Check(
                    ConstraintSpec(Kind.JSON_SCHEMA, '{"type":"integer","minimum":2,"maximum":1}'),
                    regex("").stops,
                    MAX_LEN,
                )
            )

    async def test_texts_are_judged_in_their_order(self, pool: WorkerPool) -> None:
        job = Judge(ConstraintSpec(Kind.REGEX, "[0-9]{2}"), ("12", "1", "é", "123"), MAX_LEN)
        judged = await pool.do(job)
        assert isinstance(judged, JudgeResult)
        assert [each.position for each in judged.judgements] == [None, 1, 0, 2]
        assert judged.min_len == 2

    @pytest.mark.parametrize("wait_s", [-0.5, 0.0, 0.002])
    async def test_a_job_that_comes_too_late_is_not_said_to_have_been_tried(
        self, pool: WorkerPool, wait_s: float
    ) -> None:
        # A worker that is killed as soon as it was asked may have computed for some milliseconds.
        with pytest.raises(PoolBusy, match="no time") as caught:
            await pool.do(regex("(a|b)*a(a|b){10}"), wait_s=wait_s)
        assert not caught.value.was_tried

    async def test_the_zygote_has_one_thread_and_no_environment_of_ours(
        self, pool: WorkerPool
    ) -> None:
        await pool.do(regex("a"))
        (zygote,) = zygotes()
        assert len(list(Path(f"/proc/{zygote}/task").iterdir())) == 1
        names = {
            word.partition(b"=")[0]
            for word in Path(f"/proc/{zygote}/environ").read_bytes().split(b"\0")
        }
        assert names - {b""} == {b"PYTHONPATH", b"OPENBLAS_NUM_THREADS", b"GLIBC_TUNABLES"}

    @pytest.mark.skipif(
        not _HUGE_PAGES.exists() or "[never]" in _HUGE_PAGES.read_text(),
        reason="this kernel makes no huge pages",
    )
    async def test_workers_are_forked_out_of_huge_pages(self, pool: WorkerPool) -> None:
        (zygote,) = zygotes()
        _, _, heap = Path(f"/proc/{zygote}/smaps").read_text().partition("[heap]")
        # The kernel was told; whether it has any to spare is its own affair.
        assert "hg" in heap.split("VmFlags:")[1].split("\n")[0].split()

    async def test_workers_hold_nothing_but_their_own_channel(self, pool: WorkerPool) -> None:
        for number in range(3):
            await pool.do(regex(f"a{number}"))
        (zygote,) = zygotes()
        await until(lambda: {num_sockets(pid) for pid in children_of(zygote)} == {1})


@pytest.mark.parametrize(
    ("rules", "said"),
    [({"cpu_s": 0.1}, r"more than 0\.1 s"), ({"memory_bytes": 1 << 20}, "1 MiB")],
    ids=repr,
)
async def test_who_takes_too_much_time_or_memory_is_ended_and_replaced(
    tmp_path: Path, rules: dict[str, float], said: str
) -> None:
    async with pooling(tmp_path, **rules) as pool:
        with pytest.raises(TooComplex, match=said):
            await pool.do(_COSTLY)
        assert isinstance(await pool.do(regex("a")), CheckResult)


async def test_a_worker_that_breaks_is_told_of_and_replaced(tmp_path: Path) -> None:
    async with pooling(tmp_path, wait_s=60.0, cpu_s=60.0) as pool:
        rules = "\n".join(f'r{index}: "a{index}" r{index + 1}?' for index in range(60_000))
        deep = ConstraintSpec(Kind.LARK, f'start: r0\n{rules}\nr60000: "z"\n'[:999_999])
        with pytest.raises(ConstraintError):
            await pool.do(Check(deep, regex("").stops, MAX_LEN))
        assert isinstance(await pool.do(regex("a")), CheckResult)


@pytest.mark.alone
async def test_a_slow_job_holds_up_quick_ones_for_no_more_than_a_slice(tmp_path: Path) -> None:
    endless = costly(num_choices=280_000)
    patience = {"cpu_s": 60.0, "wait_s": 60.0, "slice_s": 0.05}
    async with pooling(tmp_path, num_quick=1, **patience) as pool:
        slow = [asyncio.ensure_future(pool.do(endless)) for _ in range(3)]
        await asyncio.sleep(0.05)
        for number in range(3):
            assert isinstance(await pool.do(regex(f"a{number}")), CheckResult)
        # They have more than a second to compute each.
        assert not all(each.done() for each in slow)
        for each in slow:
            each.cancel()
        await asyncio.gather(*slow, return_exceptions=True)


async def test_more_waiting_jobs_than_allowed_are_turned_away_at_once(tmp_path: Path) -> None:
    async with pooling(tmp_path, num_quick=1, max_waiting=2, slice_s=5.0, wait_s=5.0) as pool:
        first = [asyncio.ensure_future(pool.do(_COSTLY)) for _ in range(3)]
        await until(lambda: pool._num_waiting == 2)
        with pytest.raises(PoolBusy, match="too many"):
            await pool.do(regex("a"))
        for each in first:
            each.cancel()
        await asyncio.gather(*first, return_exceptions=True)


async def test_more_slow_jobs_than_allowed_are_turned_away_and_quick_ones_are_done(
    tmp_path: Path,
) -> None:
    # A quick job is done in a slice, also where the machine stands still for a while.
    async with pooling(tmp_path, num_quick=1, max_slow=1, cpu_s=60.0, slice_s=0.5) as pool:
        jobs = [asyncio.ensure_future(pool.do(costly(number, 280_000))) for number in range(2)]
        done, others = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
        with pytest.raises(PoolBusy, match="slow to compile"):
            await done.pop()
        assert isinstance(await pool.do(regex("a")), CheckResult)
        for each in others:
            each.cancel()
        await asyncio.gather(*others, return_exceptions=True)


async def test_nobody_waits_longer_than_is_promised(tmp_path: Path) -> None:
    async with pooling(tmp_path, num_quick=1, wait_s=0.3, cpu_s=20.0) as pool:
        begun_s = time.perf_counter()
        jobs = [pool.do(costly(number, 40_000)) for number in range(6)]
        answers = await asyncio.gather(*jobs, return_exceptions=True)
        assert time.perf_counter() - begun_s < 15.0
        assert any(isinstance(answer, PoolBusy) for answer in answers)


@pytest.mark.parametrize(("tried_s", "was_tried"), [(0.001, True), (5.0, False)])
async def test_a_job_that_could_compute_little_is_not_said_to_have_been_tried(
    tmp_path: Path, tried_s: float, was_tried: bool
) -> None:
    # Idle work on a busy machine may wait long for a millisecond, and must not be done by then.
    endless = costly(num_choices=200_000)
    async with pooling(tmp_path, tried_s=tried_s, cpu_s=60.0) as pool:
        with pytest.raises(PoolBusy) as caught:
            await pool.do(endless, wait_s=0.5)
        assert caught.value.was_tried is was_tried


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is niceness alone")
@pytest.mark.asyncio(loop_scope="class")
class TestIdleWork:
    """What goes on beyond its allowance gives way to all other work, and is done all the same."""

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    async def workers(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[int]]:
        """Processes that have computed for long, and those that are ready for the next jobs."""
        folder = tmp_path_factory.mktemp("model")
        async with pooling(folder, num_quick=1, wait_s=60.0, cpu_s=60.0) as pool:
            for number in range(2):
                await pool.do(costly(number, 30_000))
            yield children_of(zygotes()[0])

    async def test_it_is_idle_work_and_those_that_are_ready_are_not(
        self, workers: list[int]
    ) -> None:
        policies = {os.sched_getscheduler(pid) for pid in workers}
        assert policies == {os.SCHED_IDLE, os.SCHED_OTHER}

    @needs_compiler
    async def test_it_leaves_its_core_again_and_again(self, workers: list[int]) -> None:
        # Once in each of some 150 milliseconds, and in fewer where a timer rings late.
        assert max(map(num_pauses, workers)) >= 30

    @needs_slices
    async def test_it_takes_long_turns_whatever_its_priority(self, workers: list[int]) -> None:
        assert {slice_ns(pid) for pid in workers} == {20_000_000}


@pytest.mark.skipif(os.geteuid() != 0, reason="who has given way needs privileges to stop it")
async def test_a_job_is_done_beside_work_that_leaves_no_core_free(tmp_path: Path) -> None:
    async with pooling(tmp_path, num_quick=1, wait_s=6.0, cpu_s=6.0) as pool:
        await pool.do(costly(0, 30_000))  # spends what may be computed at normal priority
        spinning = [
            await asyncio.create_subprocess_exec(sys.executable, "-c", "while True: pass")
            for _ in range(2 * len(os.sched_getaffinity(0)))
        ]
        try:
            assert isinstance(await pool.do(costly(1, 10_000)), CheckResult)
        finally:
            for each in spinning:
                each.kill()
                await each.wait()


async def test_a_job_that_nobody_waits_for_any_more_is_ended(tmp_path: Path) -> None:
    async with pooling(tmp_path, cpu_s=60.0, wait_s=60.0) as pool:
        asking = asyncio.create_task(pool.do(costly(num_choices=280_000)))
        (zygote,) = zygotes()
        await until(lambda: any(computed_s(pid) > 0.1 for pid in children_of(zygote)))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert pool.num_ended == 1
        assert isinstance(await pool.do(regex("a")), CheckResult)


async def test_a_zygote_that_is_killed_comes_back_and_nothing_is_left_of_the_first(
    tmp_path: Path,
) -> None:
    async with pooling(tmp_path, wait_s=20.0) as pool:
        await pool.do(regex("a"))
        (first,) = zygotes()
        workers = children_of(first)
        assert workers
        os.kill(first, signal.SIGKILL)
        await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
        await until(lambda: zygotes() not in ([], [first]))
        assert isinstance(await pool.do(regex("b")), CheckResult)


async def test_a_worker_that_nobody_can_fork_is_forked_by_the_next_zygote(tmp_path: Path) -> None:
    idle_workers = IdleWorkers(program(tmp_path), max_low=1)
    zygote = await idle_workers.zygote_client()
    os.kill(zygote.pid, signal.SIGKILL)
    # The loop does not run, and so its death is not noticed.
    while Path(f"/proc/{zygote.pid}").exists() and not _is_zombie(zygote.pid):
        time.sleep(0.001)  # noqa: ASYNC251
    worker = await idle_workers.take(low=False)
    assert await idle_workers.zygote_client() is not zygote
    worker.close_channel()
    await idle_workers.close()


async def test_ended_workers_leave_no_zombies(tmp_path: Path) -> None:
    async with pooling(tmp_path, cpu_s=0.05) as pool:
        for _ in range(3):
            with pytest.raises(TooComplex):
                await pool.do(_COSTLY)
        (zygote,) = zygotes()
        await until(lambda: not any(_is_zombie(pid) for pid in children_of(zygote)))
        assert 1 <= len(children_of(zygote)) <= 4
    await until(lambda: zygotes() == [])


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


async def test_a_tokenizer_that_will_not_do_is_told_at_once_and_for_good(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    pool = WorkerPool(VocabularyFile(path, None, (), MAX_LEN), PoolRules(wait_s=30.0))
    try:
        for _ in range(2):
            with pytest.raises(ZygoteFailed, match=r"tokenizer\.json"):
                await pool.do(regex("a"))
    finally:
        await pool.close()


def test_everything_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    vocabulary_file(tmp_path)
    program = f"""
import asyncio, pathlib, sys
from tests.constraints.worker.pools import pooling, regex
async def main():
    async with pooling(pathlib.Path({str(tmp_path)!r})) as pool:
        await pool.do(regex("a"))
        print("ready", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        (zygote,) = zygotes(owner.pid)
        family = [zygote, *children_of(zygote)]
        assert len(family) > 1
        owner.kill()
    deadline_s = time.monotonic() + 30.0
    while any(_is_alive(pid) for pid in family):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists() and not _is_zombie(pid)


def program(folder: Path) -> Program:
    """A zygote over the byte tokenizer."""
    limits = ("--cpu-s", "60", "--memory-bytes", str(1 << 30))
    arguments = (*vocabulary_file(folder).arguments(), *limits)
    return Program("constraints.worker", arguments, "workers")


@pytest.fixture
async def complaints() -> Callable[[], list[dict[str, Any]]]:
    """What the loop was told of errors that nobody has read, as a function to call at the end."""
    told: list[dict[str, Any]] = []
    # Sockets that tests before this one have left to it.
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def all_of_them() -> list[dict[str, Any]]:
        gc.collect()
        return told

    return all_of_them


async def test_it_can_be_closed_while_its_zygote_reads_the_tokenizer(
    tmp_path: Path, complaints: Callable[[], list[dict[str, Any]]]
) -> None:
    num_before = num_sockets(os.getpid())
    idle_workers = IdleWorkers(program(tmp_path), max_low=1)
    async with asyncio.timeout(30):
        while not zygotes():
            await asyncio.sleep(0.001)

    # Told to end, the zygote still says that it is ready.
    await idle_workers.close()
    del idle_workers

    assert complaints() == []
    assert zygotes() == []
    assert num_sockets(os.getpid()) == num_before


@pytest.mark.parametrize("num_turns", [0, 2, 5])
async def test_a_zygote_that_is_being_started_is_ended_if_nobody_waits_for_it(
    num_turns: int, tmp_path: Path, complaints: Callable[[], list[dict[str, Any]]]
) -> None:
    num_before = num_sockets(os.getpid())
    starting = asyncio.create_task(ZygoteClient.start(program(tmp_path)))
    for _ in range(num_turns):
        await asyncio.sleep(0)

    starting.cancel()
    (started,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(started, ZygoteClient):
        await started.close()
    del starting, started

    assert complaints() == []
    assert zygotes() == []
    assert num_sockets(os.getpid()) == num_before
