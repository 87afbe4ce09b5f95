"""Starts the download, then the shards and the router, and watches them to the end.

    download -> shards (all ranks at once) and router -> serving -> drain -> router -> shards
                                                          ^   |
                                  one of them is started anew

The router, which waits for the shards, imports what it needs while they load.

Ranks depend on each other, so when one of them dies, all are started anew; the router goes on, and
replays on the new ones what ran. It asks for new ones itself, by SIGUSR1, where they hang. A router
that dies is started anew alone. What ends before everything was ready, or too often, stops
everything with its last lines and a non-zero code.

Where several machines share the ranks, each has a launcher, which knows its own shards alone, and
the first one has the router. When a shard dies, those of other machines notice it and end; their
launchers start them anew, as often as it takes.

Behind each shard one more process may stand by, with everything imported, to take its place.

The first SIGTERM or SIGINT drains, the second ends every stream with an error at once. Whatever
happens, no child and no socket stays behind.
"""

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from processes.addresses import answers_health, answers_http2, socket_listens, url_of
from processes.child import Child, ChildFailed
from processes.deployment import Deployment, num_visible_gpus
from processes.fetching import fetch_tokenizer
from processes.host import HostMemory
from processes.logs import Console
from processes.signals import Signals, Stopped, first_of

WINDOW_S = 600.0
# Who lives for so long did not end because of how it was started.
_STABLE_S = 2.0
_FIRST_DELAY_S = 1.0
_MAX_DELAY_S = 30.0


class RestartLimit:
    """At most `max_restarts` within `WINDOW_S`: at once, but later where the last was in vain.

    What ended for another machine's sake is started anew without being counted.
    """

    def __init__(self, max_restarts: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.max_restarts = max_restarts
        self._clock = clock
        self._restarted_s: deque[float] = deque()
        self._ready_s: float | None = None
        self._num_in_vain = 0

    def note_ready(self) -> None:
        """What was started is ready now."""
        self._ready_s = self._clock()

    def next_delay_s(self, *, is_counted: bool = True) -> float | None:
        """Seconds until the next start, which counts as made; None: there were too many."""
        now_s = self._clock()
        while self._restarted_s and now_s - self._restarted_s[0] > WINDOW_S:
            self._restarted_s.popleft()
        if is_counted and len(self._restarted_s) >= self.max_restarts:
            return None
        is_stable = self._ready_s is not None and now_s - self._ready_s >= _STABLE_S
        self._num_in_vain = 0 if is_stable else self._num_in_vain + 1
        self._ready_s = None
        if is_counted:
            self._restarted_s.append(now_s)
        # The first one is soon, whatever it was.
        num_doubled = self._num_in_vain - 2
        return 0.0 if num_doubled < 0 else min(_FIRST_DELAY_S * 2.0**num_doubled, _MAX_DELAY_S)


# A process that stands by takes two thirds of this, and all of it with a large vocabulary.
_STANDBY_BYTES = 500 << 20
_STANDBY_SHARE = 0.25
_POLL_S = 0.05
_REPORT_EVERY_S = 10.0
_SHARD_STOP_S = 5.0
# Where no router watches the shards: how often they are asked, and after how many answers that did
# not come they count as hung.
_ASK_EVERY_S = 1.0
_MAX_UNANSWERED = 2
# Behind a second signal, for the router to end every stream with an event.
_LAST_EVENTS_S = 2.0
_SIGNAL_EVERY_S = 0.2
# The router ends by itself when its drain is over, after the last step, the last bytes and the last
# traces; asked once more before that, it would stop at once.
ROUTER_SLACK_S = 15.0


def example(plan: Deployment) -> str:
    """What a person may do with the server, who sees it start."""
    url = url_of(plan.hostname, plan.port, has_tls=plan.has_tls)
    needs_key = plan.reloads_keys or "API_KEY" in plan.secrets
    key = ' -H "Authorization: Bearer $API_KEY"' if needs_key else ""
    body = '{"inputs": "Once there was", "parameters": {"max_new_tokens": 40}}'
    return (
        f"\nTandem serves at {url}. Open it in a browser, or try:\n\n"
        f"    curl -N {url}/generate_stream{key} -H 'Content-Type: application/json' \\\n"
        f"      -d '{body}'\n\n"
    )


def wants_standbys(plan: Deployment, environ: Mapping[str, str], memory: HostMemory) -> bool:
    """Whether a process is to stand by for each shard: as the operator says, or by the rules."""
    if plan.max_restarts == 0:
        return False
    if plan.standby_shards is not None:
        return plan.standby_shards
    if plan.parent_pid is not None:
        # One of several models, which need the memory for one another.
        return False
    if plan.device != "cpu" and num_visible_gpus(environ, count_all=True):
        return True
    available = memory.available_bytes()
    needed = len(plan.ranks) * _STANDBY_BYTES
    return available is not None and needed <= _STANDBY_SHARE * available


class _TooManyRestarts(ChildFailed):
    """What ended will not be started anew."""


class Supervisor:
    """Owner of all child processes of one `launcher serve`. To be made in its event loop."""

    def __init__(
        self, deployment: Deployment, environ: Mapping[str, str], console: Console
    ) -> None:
        self._deployment = deployment
        self._environ = environ
        self._console = console
        self._shards: list[Child] = []
        self._standbys: list[Child] = []
        self._router: Child | None = None
        self._is_draining = False
        self._restarts = RestartLimit(deployment.max_restarts)
        self._wants_shards = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._wants_shards.set)
        self._has_served = False
        self._tokenizer_folder: Path | None = None
        self._signals = Signals(
            deployment.parent_pid,
            self._announce_drain,
            self._stop_at_once,
            on_hangup=self._reload_keys if deployment.reloads_keys else None,
        )

    async def run(self) -> int:
        """Serve until a signal or a death. Returns the exit code."""
        started_s = time.monotonic()
        failure: ChildFailed | None = None
        self._console.say(f"Tandem {version('tandem')} will serve {self._deployment.model_id}")
        try:
            fetching = fetch_tokenizer(self._deployment, self._environ, self._console)
            self._tokenizer_folder = await self._signals.unless_stopped(fetching)
            await self._start_shards()
            if self._deployment.serves_http:
                await self._start_router()
            await self._signals.unless_stopped(self._until_first_ready())
            self._has_served = True
            self._console.say(f"ready after {time.monotonic() - started_s:.1f} s")
            self._say_where()
            await self._start_standbys()
            await self._signals.unless_stopped(self._keep_running())
        except Stopped:
            await self._drain()
        except ChildFailed as error:
            failure = error
        finally:
            self._signals.close()
            await self._stop_children()
        if failure is None:
            self._console.say("stopped")
        else:
            self._console.say(f"error: {failure}", "ERROR")
        self._console.flush()
        return 0 if failure is None else 1

    def _reload_keys(self) -> None:
        # Before that it may not handle the signal, and reads the file in any case.
        if self._has_served and self._router is not None:
            self._router.signal(signal.SIGHUP)

    def _announce_drain(self, signum: signal.Signals) -> None:
        self._console.say(f"{signum.name}: draining; a second signal stops at once")

    def _stop_at_once(self) -> None:
        self._console.say("stopping at once")
        if not self._is_draining:
            self._kill_children()

    def _kill_children(self) -> None:
        for child in [*self._children(), *self._standbys]:
            child.kill_group()

    def _children(self) -> list[Child]:
        return [*([self._router] if self._router else []), *self._shards]

    def _say_where(self) -> None:
        plan = self._deployment
        if not plan.serves_http:
            return
        if plan.http_uds is None and self._console.is_watched:
            self._console.print(example(plan))
            return
        url = url_of(plan.hostname, plan.port, has_tls=plan.has_tls)
        place = url if plan.http_uds is None else f"unix:{plan.http_uds}"
        self._console.say(f"Tandem serves at {place}")

    async def _start_shards(self) -> None:
        plan = self._deployment
        num_here = len(plan.ranks)
        self._console.say(f"loading it on {num_here} shard{'s' * (num_here > 1)}")
        standbys = self._standbys
        self._standbys = []
        if standbys and all(each.stands_by for each in standbys):
            self._shards = standbys
            for each in standbys:
                each.call_up()
            return
        for each in standbys:
            if each.returncode is not None:
                self._console.say(f"standing by, {each.death_notice()}", "WARNING")
            each.kill_group()
        for rank in plan.ranks:
            argv = plan.shard_argv(self._tokenizer_folder)
            environ = plan.shard_environ(rank, self._environ)
            self._shards.append(await Child.start(f"shard {rank}", argv, environ, self._console))

    async def _start_standbys(self) -> None:
        """Beside what serves: they import at the lowest priority."""
        plan = self._deployment
        if not wants_standbys(plan, self._environ, HostMemory()):
            return
        for rank in plan.ranks:
            argv = plan.standby_argv(self._tokenizer_folder)
            environ = plan.shard_environ(rank, self._environ)
            self._standbys.append(
                await Child.start(f"shard {rank}", argv, environ, self._console, waits=True)
            )

    async def _until_first_ready(self) -> None:
        """Raises ChildFailed where the fault is here: shards that lost others are started anew."""
        dead: list[Child] = []
        while True:
            try:
                if dead:
                    await self._restart_shards(dead)
                else:
                    await self._until_listening()
                await self._until_answering()
                return
            except ChildFailed:
                dead = self._dead_shards()
                if not dead or not _have_lost_others(dead):
                    raise

    async def _until_listening(self) -> None:
        """Until every shard does. Raises ChildFailed when it takes too long or a child ends."""
        shards = self._shards
        limit_s = self._deployment.startup_timeout_s
        started_s = reported_s = time.monotonic()
        places = list(map(self._deployment.shard_place, self._deployment.ranks))
        while waiting := [i for i, place in enumerate(places) if not await _listens(place)]:
            self._raise_if_dead()
            now_s = time.monotonic()
            if now_s - started_s > limit_s:
                stuck = shards[waiting[0]]
                last_line = stuck.last_lines[-1] if stuck.last_lines else "nothing"
                raise ChildFailed(
                    f"{stuck.name} is not ready after {limit_s:.0f} s (--shard-startup-timeout); "
                    f"it said last: {last_line}"
                )
            if now_s - reported_s > _REPORT_EVERY_S:
                reported_s = now_s
                names = ", ".join(shards[i].name for i in waiting)
                progress = shards[waiting[0]].progress
                doing = f": {progress}" if progress else ""
                self._console.say(f"waiting for {names} ({now_s - started_s:.0f} s){doing}")
            await asyncio.sleep(_POLL_S)

    async def _start_router(self) -> None:
        assert self._tokenizer_folder is not None
        environ = self._deployment.router_environ(self._environ)
        argv = self._deployment.router_argv(self._tokenizer_folder)
        self._router = await Child.start("router", argv, environ, self._console)

    async def _until_answering(self) -> None:
        """Until the router is ready or wants other shards. Raises ChildFailed if a child ends."""
        plan = self._deployment
        while plan.serves_http and not await answers_health(
            plan.hostname, plan.port, has_tls=plan.has_tls, uds=plan.http_uds
        ):
            self._raise_if_dead()
            if self._wants_shards.is_set():
                return
            await asyncio.sleep(_POLL_S)
        self._restarts.note_ready()

    async def _keep_running(self) -> None:
        """Starts anew what ends. Raises ChildFailed when that happens too often."""
        while True:
            await self._until_something_ends()
            dead = self._dead_shards()
            is_router_dead = self._router is not None and self._router.returncode is not None
            try:
                if dead or self._wants_shards.is_set():
                    await self._restart_shards(dead)
                elif is_router_dead:
                    await self._restart_router()
                await self._until_answering()
                self._console.say("ready again")
                if not self._standbys:
                    await self._start_standbys()
            except _TooManyRestarts:
                raise
            except ChildFailed:
                # The next turn starts anew what has ended meanwhile.
                continue

    def _dead_shards(self) -> list[Child]:
        return [shard for shard in self._shards if shard.returncode is not None]

    async def _until_something_ends(self) -> None:
        """A child, or the patience with the shards: the router's, or ours where there is none."""
        ends: list[asyncio.Future[Any]] = []
        ends += [asyncio.ensure_future(child.wait()) for child in self._children()]
        ends.append(asyncio.ensure_future(self._wants_shards.wait()))
        if not self._deployment.serves_http:
            ends.append(asyncio.ensure_future(self._until_silent()))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()

    async def _until_silent(self) -> None:
        """Until a shard of this machine does not answer, and so wants to be replaced."""
        num_unanswered = 0
        places = list(map(self._deployment.shard_place, self._deployment.ranks))
        while num_unanswered < _MAX_UNANSWERED:
            await asyncio.sleep(_ASK_EVERY_S)
            answers = await asyncio.gather(*map(_listens, places))
            num_unanswered = 0 if all(answers) else num_unanswered + 1
        self._wants_shards.set()

    async def _restart_shards(self, dead: Sequence[Child]) -> None:
        await self._wait_for_restart(
            "the shards",
            dead[0].death_notice() if dead else "the shards do not answer",
            is_counted=not _have_lost_others(dead) if dead else not self._may_hang_elsewhere(),
        )
        for shard in self._shards:
            shard.kill_group()
        await asyncio.gather(*(shard.wait() for shard in self._shards))
        self._shards.clear()
        self._wants_shards.clear()
        await self._start_shards()
        try:
            await self._until_listening()
            # What the router wanted meanwhile is there now.
            self._wants_shards.clear()
        except ChildFailed as error:
            self._console.say(f"error: {error}", "ERROR")
            # Those that hang while they load count as dead, too, unless some ended by themselves.
            ended = self._dead_shards()
            for shard in self._shards:
                shard.kill_group()
            if ended:
                await asyncio.gather(*(shard.wait() for shard in self._shards))
                self._shards = ended
            raise

    def _may_hang_elsewhere(self) -> bool:
        """Whether the shard that the router hears nothing of may be another machine's."""
        return self._deployment.node is not None and self._deployment.serves_http

    async def _restart_router(self) -> None:
        assert self._router is not None
        await self._wait_for_restart("the router", self._router.death_notice())
        # What it has started ends with it.
        self._router.kill_group()
        await self._start_router()

    async def _wait_for_restart(self, name: str, reason: str, *, is_counted: bool = True) -> None:
        delay_s = self._restarts.next_delay_s(is_counted=is_counted)
        if delay_s is None:
            most = self._restarts.max_restarts
            limit = f"\n{most} restarts within {WINDOW_S:.0f} s are the most (--max-restarts)"
            raise _TooManyRestarts(reason + (limit if most else ""))
        when = f"in {delay_s:g} s" if delay_s else "now"
        self._console.say(f"error: {reason}", "ERROR")
        self._console.say(f"{name} will be started anew {when}")
        await asyncio.sleep(delay_s)

    def _raise_if_dead(self) -> None:
        # The router falls after a shard, so a shard's end is the cause and is named first.
        for child in [*self._shards, *self._children()]:
            if child.returncode is not None:
                raise ChildFailed(child.death_notice())

    async def _drain(self) -> None:
        """The router ends its streams, after what they still write or at a second signal.

        A shard that dies now is not started anew, so what would wait for it is ended as well.
        """
        if self._router is None:
            return
        self._is_draining = True
        self._router.signal(signal.SIGTERM)
        ended = asyncio.create_task(self._router.wait())
        deaths = [asyncio.create_task(shard.wait()) for shard in self._shards]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._deployment.graceful_timeout_s + ROUTER_SLACK_S):
                if self._shards:
                    await first_of(self._signals.second.wait(), ended, *deaths)
        for death in deaths:
            death.cancel()
        dead = self._dead_shards()
        if dead and not ended.done():
            self._console.say(f"error: {dead[0].death_notice()}", "ERROR")
        if dead or not self._shards or self._signals.second.is_set():
            give_up_s = time.monotonic() + _LAST_EVENTS_S
            while not ended.done() and time.monotonic() < give_up_s:
                # More than once: of two signals that come together, a process notices one.
                self._router.signal(signal.SIGTERM)
                await asyncio.wait({ended}, timeout=_SIGNAL_EVERY_S)
        self._is_draining = False

    async def _stop_children(self) -> None:
        if self._signals.second.is_set():
            self._kill_children()
        for standby in self._standbys:
            standby.kill_group()
        if self._router is not None:
            await self._router.stop(_SHARD_STOP_S)
        await asyncio.gather(*(shard.stop(_SHARD_STOP_S) for shard in self._shards))
        for place in map(self._deployment.shard_place, self._deployment.ranks):
            if isinstance(place, Path):
                place.unlink(missing_ok=True)


def _have_lost_others(dead: Sequence[Child]) -> bool:
    return all(shard.has_lost_others for shard in dead)


async def _listens(place: Path | tuple[str, int]) -> bool:
    return socket_listens(place) if isinstance(place, Path) else await answers_http2(*place)
