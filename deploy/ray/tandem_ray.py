"""One model over the nodes of a Ray cluster: Ray places launchers, and replaces those it lost.

    pip install ray, and Tandem, on each node; then on one of them
    python tandem_ray.py --nnodes 2 --gpus 8 MODEL_ID --num-shard 16 [flags of launcher serve]

An actor on each node of the group runs `launcher serve --nnodes K --node-rank R`. Where a node is
lost, Ray starts its actor anew on another one, the launchers meet again, and the streams go on. The
first node has the router: with it go the connections. Exit code 2: a launcher refused a flag.
`make try-ray` tries it on one machine.

Ray asks nobody for a key: who reaches its ports runs code there, and reads the shards' token.
"""

import argparse
import logging
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

_POLL_S = 1.0
_STOP_S = 100.0
# Of a launcher whose actor is gone: it drains that long, and keeps its ports meanwhile.
_DRAIN = "--graceful-termination-timeout=2"
_log = logging.getLogger("tandem.ray")


@dataclass(frozen=True, slots=True)
class Report:
    """What an actor says of its node: address, Ray's id, and how its launcher ended, if it did."""

    address: str
    node_id: str
    exit_code: int | None = None


@ray.remote(max_restarts=-1)
class Node:
    """The launcher of a node, which ends with the actor's process (--parent-pid)."""

    def __init__(self, rank: int, flags: list[str], shard_token: str) -> None:
        self._argv = [sys.executable, "-m", "launcher", "serve", *flags, f"--node-rank={rank}"]
        self._environ = {**os.environ, "SHARD_TOKEN": shard_token}
        self._launcher: subprocess.Popen[bytes] | None = None
        self._master = ""

    def serve(self, master: str | None) -> Report:
        """It runs for this first node's address; started anew where it ended or that is another.

        `master`: None is the first node's own.
        """
        address = ray.util.get_node_ip_address()
        exit_code = None if self._launcher is None else self._launcher.poll()
        if exit_code is not None or self._master != (master or address):
            self.stop()
            self._master = master or address
            rest = [f"--master-addr={self._master}", f"--parent-pid={os.getpid()}"]
            self._launcher = subprocess.Popen([*self._argv, *rest], env=self._environ)
        return Report(address, ray.get_runtime_context().get_node_id(), exit_code)

    def stop(self) -> None:
        """Drain the launcher, and wait for its end."""
        if self._launcher is not None:
            self._launcher.terminate()
            self._launcher.wait()
            self._launcher = None


@dataclass(slots=True)
class _Member:
    """A node's actor: what it said last, and the call that it has not answered yet, or None."""

    actor: Any
    report: Report | None = None
    call: Any = None


class Group:
    """The nodes of one model."""

    def __init__(self, flags: list[str], nnodes: int, num_gpus: int) -> None:
        bundle = {"CPU": 1.0, **({"GPU": float(num_gpus)} if num_gpus else {})}
        self._places = placement_group([bundle] * nnodes, strategy="STRICT_SPREAD")
        _log.info("waiting for %d nodes with %s", nnodes, bundle)
        ray.get(self._places.ready())
        token = os.environ.get("SHARD_TOKEN") or secrets.token_hex(16)
        given = any(flag.startswith("--graceful-termination-timeout") for flag in flags)
        flags = [*flags, f"--nnodes={nnodes}", *([] if given else [_DRAIN])]
        self._members = [
            _Member(
                Node.options(
                    num_cpus=1,
                    num_gpus=num_gpus,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(self._places, rank),
                ).remote(rank, flags, token)
            )
            for rank in range(nnodes)
        ]

    def tend(self) -> None:
        """One round, of a second at most: each node is told the first one's address.

        One that does not answer is asked nothing more until it does, or Ray says that it is lost.
        Raises SystemExit(2) where a launcher refused its flags.
        """
        first = self._members[0]
        master = first.report.address if first.report is not None else None
        for member in self._members:
            if member.call is None and (member is first or master is not None):
                member.call = member.actor.serve.remote(None if member is first else master)
        calls = [member.call for member in self._members if member.call is not None]
        answered, _ = ray.wait(calls, num_returns=len(calls), timeout=_POLL_S)
        for rank, member in enumerate(self._members):
            if member.call in answered:
                self._read(rank, member)

    def _read(self, rank: int, member: _Member) -> None:
        answer = member.call
        member.call = None
        try:
            report = ray.get(answer)
        except ray.exceptions.RayActorError as error:
            if member.report is not None:
                _log.warning("node %d is lost, and is started anew: %s", rank, error)
            member.report = None
            return
        if member.report is None:
            _log.info("node %d is at %s on %s", rank, report.address, report.node_id)
        member.report = report
        if report.exit_code is not None:
            _log.error("the launcher of node %d ended with %d", rank, report.exit_code)
        if report.exit_code == 2:
            raise SystemExit(2)

    def close(self) -> None:
        """Drain all, and give the places back."""
        stopped = [member.actor.stop.remote() for member in self._members]
        ray.wait(stopped, num_returns=len(stopped), timeout=_STOP_S)
        for member in self._members:
            ray.kill(member.actor)
        remove_placement_group(self._places)


def main() -> None:
    """Tend the group until a signal, or a refused flag, ends it."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nnodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=1, help="of each node; 0: CPUs")
    parser.add_argument("--address", default="auto", help="of the Ray cluster")
    arguments, flags = parser.parse_known_args()
    logging.basicConfig(level=logging.INFO, format="%(name)s | %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    ray.init(address=arguments.address)
    group = Group(flags, arguments.nnodes, arguments.gpus)
    try:
        while True:
            begun_s = time.monotonic()
            group.tend()
            time.sleep(max(0.0, begun_s + _POLL_S - time.monotonic()))
    finally:
        group.close()


if __name__ == "__main__":
    main()
