"""`make faults`: what the death or the hang of a process costs the streams that run.

    python -m bench.faults --faults shard,rank,hang,router --trials 20 --streams 64

A server of the bundled model serves streams of several kinds, each first undisturbed. In each trial
they run together, and at a random moment a process is killed (`shard`, one `rank` of two, the
`router`) or stopped for good (`hang`). Prints a line of JSON for each fault: errors that clients
saw, texts that differ from the undisturbed ones, and the longest wait for a token, in seconds, of
each stream that ran. A router takes its connections with it: there the seconds are those until
the server is ready again, and the errors are not counted.

`replica` kills one of two whole replicas behind their front, with all its processes, and
`replica-router` the router of one, under streams of five routes of four APIs.

`node-shard`, `node` and `link`, which need root and iproute2, serve one model over two machines, of
which the second is a network namespace. Its shard is killed; or all its processes, which are
started again 8 s later; or its cable is pulled for 20 s. The pauses count from then on. Exit code 1
when a client saw an error, a text differed or a KV block stayed taken.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from bench.command_line import parser_of, progress
from bench.processes import blocks_used, resident_mib, running, tandem, tree
from bench.second_machine import NODES, SECRET, SecondMachine, second_machine
from bench.sse_client import HttpError, post_events
from launcher import BUNDLED_MODEL
from processes.addresses import free_port
from processes.child import SHARD_COMM, STANDBY_COMM

_SHARD = "model_server"
FAULTS = {
    "shard": (_SHARD, signal.SIGKILL, 1),
    "rank": (_SHARD, signal.SIGKILL, 2),
    "hang": (_SHARD, signal.SIGSTOP, 1),
    "router": ("router", signal.SIGKILL, 1),
}
# Of one of two replicas: what is killed.
REPLICA_FAULTS = {"replica": "launcher", "replica-router": "router"}
# How long the second machine is away, in seconds.
ABSENCES_S = {"node-shard": 0.0, "node": 8.0, "link": 20.0}
_LONG = {"ignore_eos": True}
_KINDS: tuple[dict[str, Any], ...] = (
    _LONG,
    {**_LONG, "do_sample": True, "temperature": 1.1, "top_p": 0.9},
    {**_LONG, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"grammar": {"type": "regex", "value": "([a-z]{1,9} ){40,60}"}, "do_sample": True},
)
_READY_TIMEOUT_S = 120.0
# In which a front asks its replicas twice how they are.
_NOTICED_S = 2.5
_GENERATE = "/generate_stream"
_CHAT = "/v1/chat/completions"
_COMPLETIONS = "/v1/completions"
_RESPONSES = "/v1/responses"


def _text_of(path: str, event: dict[str, Any]) -> str | None:
    """What an event says; None: it is an error."""
    if "error" in event or event.get("type") == "error":
        return None
    if path == _GENERATE:
        return str(event["token"]["text"])
    if path in (_CHAT, _COMPLETIONS):
        (choice,) = event["choices"]
        return choice["delta"].get("content") or "" if path == _CHAT else str(choice["text"])
    delta = event.get("delta") or ""
    return str(delta.get("text", "") if isinstance(delta, dict) else delta)


@dataclass(slots=True)
class Stream:
    """One stream of a trial: its tokens' times and text, and how it ended."""

    body: bytes
    path: str = _GENERATE
    times_s: list[float] = field(default_factory=list)
    text: str = ""
    error: str | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, url: str) -> None:
        try:
            async for data in post_events(f"{url}{self.path}", self.body):
                if data == b"[DONE]":
                    continue
                text = _text_of(self.path, json.loads(data))
                if text is None:
                    self.error = data.decode()
                    return
                self.times_s.append(time.monotonic())
                self.begun.set()
                self.text += text
        except (HttpError, OSError, asyncio.IncompleteReadError) as error:
            self.error = f"{type(error).__name__}: {error}"

    def pause_s(self, fault_s: float) -> float | None:
        """The longest wait for a token since the fault; None where it had ended or did not begin.

        The first tokens behind a fault were on their way before it.
        """
        if not self.times_s or not self.times_s[0] < fault_s < self.times_s[-1]:
            return None
        pairs = zip(self.times_s, self.times_s[1:], strict=False)
        return max(later - max(one, fault_s) for one, later in pairs if later > fault_s)


def streams_of(num_streams: int, output_len: int, fault: str = "") -> list[Stream]:
    """The same for each trial; where replicas are killed, those of each API in turn."""
    if fault in REPLICA_FAULTS:
        return [_stream_of_any_api(number, output_len) for number in range(num_streams)]
    bodies = (
        {
            "inputs": f"Once there were {number}",
            "parameters": {
                "max_new_tokens": output_len,
                **_KINDS[number % len(_KINDS)],
                **({"seed": number} if "do_sample" in _KINDS[number % len(_KINDS)] else {}),
            },
        }
        for number in range(num_streams)
    )
    return [Stream(json.dumps(body).encode()) for body in bodies]


def _stream_of_any_api(number: int, output_len: int) -> Stream:
    drawn: dict[str, Any] = {"temperature": 1.1 if number % 2 else 0.0, "seed": number}
    text = f"Once there were {number}"
    turns = [{"role": "user", "content": text}]
    drawn |= {**_LONG, "stream": True, "max_tokens": output_len}
    bodies = {
        _GENERATE: {"inputs": text, "parameters": {"max_new_tokens": output_len, **_LONG}},
        _CHAT: {"messages": turns, **drawn},
        _COMPLETIONS: {"prompt": text, **drawn},
        _RESPONSES: {
            "input": text,
            "temperature": 0.0,
            "max_output_tokens": output_len,
            "stream": True,
            **_LONG,
        },
        "/v1/messages": {
            "messages": turns,
            "temperature": 0.0,
            "max_tokens": output_len,
            "stream": True,
        },
    }
    path = list(bodies)[number % len(bodies)]
    return Stream(json.dumps(bodies[path]).encode(), path)


@dataclass(slots=True)
class Outcome:
    """All trials of one fault."""

    num_errors: int = 0
    num_different: int = 0
    pauses_s: list[float] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


async def _trial(
    url: str,
    pid: int,
    fault: str,
    expected: Sequence[str],
    output_len: int,
    outcome: Outcome,
    machine: SecondMachine | None,
) -> None:
    module, signum, _ = FAULTS.get(fault, ("", 0, 2))
    streams = streams_of(len(expected), output_len, fault)
    reading = [asyncio.create_task(stream.run(url)) for stream in streams]
    await streams[len(streams) // 2].begun.wait()
    await asyncio.sleep(random.uniform(0.0, 1.0))
    fault_s = time.monotonic()
    if fault in REPLICA_FAULTS:
        _kill_of_replica(pid, REPLICA_FAULTS[fault])
    elif machine is None:
        os.kill(random.choice(_pids_of(pid, module)), signum)
    else:
        await _be_away(machine, fault)
    if module == "router":
        await asyncio.sleep(0.1)
        await _until_ready(url)
        outcome.pauses_s.append(time.monotonic() - fault_s)
        await asyncio.gather(*reading)
        return
    await asyncio.gather(*reading)
    away_s = ABSENCES_S.get(fault, 0.0)
    pauses_s = [s for stream in streams if (s := stream.pause_s(fault_s)) is not None]
    outcome.pauses_s += [pause_s - away_s for pause_s in pauses_s]
    errors = [stream.error for stream in streams if stream.error is not None]
    outcome.num_errors += len(errors)
    outcome.examples += errors[:1]
    outcome.num_different += sum(
        stream.error is None and stream.text != text
        for stream, text in zip(streams, expected, strict=True)
    )
    if fault in REPLICA_FAULTS:
        await asyncio.sleep(_NOTICED_S)
    await _until_ready(url, num_replicas=2 if fault in REPLICA_FAULTS else 0)


def _kill_of_replica(pid: int, module: str) -> None:
    """One replica's processes, or its router's alone. The first launcher is the front's."""
    victims = random.choice([tree(each) for each in _pids_of(pid, "launcher") if each != pid])
    for each in victims if module == "launcher" else _pids_of(victims[0], module):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


async def _be_away(machine: SecondMachine, fault: str) -> None:
    if fault == "node-shard":
        os.kill(random.choice(_pids_of(machine.pid, _SHARD)), signal.SIGKILL)
        return
    if fault == "node":
        machine.kill()
    else:
        machine.set_cable("down")
    await asyncio.sleep(ABSENCES_S[fault])
    if fault == "node":
        machine.start()
    else:
        machine.set_cable("up")


async def _run(
    url: str, pid: int, fault: str, arguments: argparse.Namespace, machine: SecondMachine | None
) -> Outcome:
    await _until_ready(url, num_replicas=2 if fault in REPLICA_FAULTS else 0)
    undisturbed = streams_of(arguments.streams, arguments.output_len, fault)
    # The last one is constrained: checked alone, it is not refused by a machine that is busy.
    await undisturbed[-1].run(url)
    undisturbed[-1] = Stream(undisturbed[-1].body, undisturbed[-1].path)
    await asyncio.gather(*(stream.run(url) for stream in undisturbed))
    failed = [stream.error for stream in undisturbed if stream.error is not None]
    if failed:
        raise RuntimeError(f"a stream that nobody disturbed failed: {failed[0]}")
    expected = [stream.text for stream in undisturbed]
    outcome = Outcome()
    for _ in progress(range(arguments.trials), f"trials of {fault}"):
        if arguments.standby:
            await _until_standing_by(pid, 1 if machine else FAULTS[fault][2])
            if machine is not None:
                await _until_standing_by(machine.pid, 1)
        await _trial(url, pid, fault, expected, arguments.output_len, outcome, machine)
    return outcome


async def _until_ready(url: str, num_replicas: int = 0) -> None:
    """With replicas: all of them."""
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    async with httpx.AsyncClient(timeout=2.0) as client:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.TransportError):
                if num_replicas:
                    wanted = f"tandem_fleet_ready_replicas {float(num_replicas)}"
                    if wanted in (await client.get(f"{url}/metrics")).text:
                        return
                elif (await client.get(f"{url}/health/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.02)
    raise RuntimeError(f"the server was not ready within {_READY_TIMEOUT_S:g} s")


def _pids_of(root: int, module: str) -> list[int]:
    """Processes that run it; a shard may have stood by before."""

    def runs(pid: int) -> bool:
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return b"-m" in words and words[words.index(b"-m") + 1] == module.encode()

    found = [pid for pid in tree(root) if runs(pid)]
    if module == _SHARD:
        found += [pid for pid in tree(root) if _comm(pid) == SHARD_COMM]
    return found


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


async def _until_standing_by(root: int, num_shards: int) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        if [_comm(pid) for pid in tree(root)].count(STANDBY_COMM) == num_shards:
            return
        await asyncio.sleep(0.1)
    raise RuntimeError(f"no shard stood by within {_READY_TIMEOUT_S:g} s")


def _measure(fault: str, arguments: argparse.Namespace) -> dict[str, Any]:
    port = free_port()
    is_spread = fault in ABSENCES_S
    num_shards: tuple[str, ...] = ("--replicas", "2")
    if fault not in REPLICA_FAULTS:
        num_shards = ("--num-shard", str(FAULTS[fault][2])) if not is_spread else NODES
    flags = [*num_shards, "--max-restarts", "100000", "--check-invariants"]
    flags.append("--standby-shards" if arguments.standby else "--no-standby-shards")
    server = tandem(Path(arguments.model), port, flags)
    url = f"http://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:
        machine = None
        if is_spread:
            log = Path("/tmp/bench-second-machine.log")
            machine = stack.enter_context(second_machine([arguments.model, *flags], log))
            server = replace(server, environ={**server.environ, **SECRET})
        pid = stack.enter_context(running(server))
        router_mib = resident_mib(_pids_of(pid, "router")[0])
        outcome = asyncio.run(_run(url, pid, fault, arguments, machine))
        pauses_s = sorted(outcome.pauses_s)
        return {
            "fault": fault,
            "trials": arguments.trials,
            "standby": arguments.standby,
            "streams": arguments.streams,
            "num_errors": outcome.num_errors,
            "num_different": outcome.num_different,
            "num_pauses": len(pauses_s),
            "pause_p50_s": round(statistics.median(pauses_s), 2),
            "pause_p99_s": round(pauses_s[int(0.99 * (len(pauses_s) - 1))], 2),
            "kv_blocks_used": blocks_used(httpx.get(f"{url}/metrics", timeout=10).text),
            "router_mib": [router_mib, resident_mib(_pids_of(pid, "router")[0])],
            "examples": outcome.examples[:3],
        }


def main() -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument(
        "--faults",
        default=",".join([*FAULTS, *REPLICA_FAULTS]),
        help="which, separated by commas; also node-shard, node, link",
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--output-len", type=int, default=150, help="tokens of a stream")
    parser.add_argument("--model", default=str(BUNDLED_MODEL))
    parser.add_argument("--standby", action="store_true", help="with shards that stand by")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    is_bad = False
    for fault in arguments.faults.split(","):
        row = _measure(fault, arguments)
        is_bad |= bool(row["num_errors"] or row["num_different"] or row["kv_blocks_used"])
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
