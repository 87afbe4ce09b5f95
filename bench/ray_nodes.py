"""`make try-ray`: what streams notice when a Ray cluster loses a node of their model.

    python -m bench.ray_nodes [--streams 4] [--output-len 400]

Starts a Ray cluster of four nodes on this machine, the bundled model over two of them by
deploy/ray/tandem_ray.py, and streams. Then the second node of the model is removed: Ray has a
third one for it. Prints JSON, with the longest wait of each stream since then, in seconds. Exit
code 1 when a client saw an error or another text.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from ray.cluster_utils import Cluster

from bench.command_line import parser_of
from bench.faults import Stream, streams_of
from bench.processes import until
from launcher import BUNDLED_MODEL
from processes.addresses import free_port

_EXAMPLE = Path(__file__).parents[1] / "deploy" / "ray" / "tandem_ray.py"
_PLACE = re.compile(r"node 1 is at \S+ on (\w+)")
_READY_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


@contextlib.contextmanager
def _served(cluster: Cluster, port: int, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The example, as somebody starts it; it writes to `log`."""
    options = ("--address", cluster.address, "--nnodes", "2", "--gpus", "0")
    flags = ("--num-shard", "2", "--port", str(port), "--max-restarts", "1000")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, str(_EXAMPLE), *options, str(BUNDLED_MODEL), *flags],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(_STOP_TIMEOUT_S)


async def _until_ready(url: str) -> None:
    deadline_s = time.monotonic() + _READY_TIMEOUT_S
    async with httpx.AsyncClient(timeout=2.0) as client:
        while time.monotonic() < deadline_s:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get(f"{url}/health/ready")).status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise RuntimeError(f"the model was not ready within {_READY_TIMEOUT_S:g} s")


async def _run(streams: Sequence[Stream], url: str) -> None:
    await asyncio.gather(*(stream.run(url) for stream in streams))


async def _lose(cluster: Cluster, node_id: str, streams: Sequence[Stream], url: str) -> float:
    """Removes a node under the streams; when that was."""
    running = asyncio.create_task(_run(streams, url))
    await asyncio.gather(*(stream.begun.wait() for stream in streams))
    lost_s = time.monotonic()
    (node,) = [each for each in cluster.worker_nodes if each.node_id == node_id]
    # Else it would first be drained.
    await asyncio.to_thread(cluster.remove_node, node, allow_graceful=False)
    await running
    return lost_s


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--output-len", type=int, default=400, help="tokens of a stream")
    arguments = parser.parse_args(argv)
    begun_s = time.monotonic()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    log = Path(tempfile.gettempdir()) / "bench-ray-nodes.log"
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    undisturbed = streams_of(arguments.streams, arguments.output_len)
    streams = streams_of(arguments.streams, arguments.output_len)
    try:
        for _ in range(3):
            cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        up_s = time.monotonic()
        with _served(cluster, port, log) as process:
            asyncio.run(_until_ready(url))
            ready_s = time.monotonic()
            asyncio.run(_run(undisturbed, url))
            node_id = until(process, log, _PLACE)
            lost_s = asyncio.run(_lose(cluster, node_id, streams, url))
    finally:
        cluster.shutdown()
    errors = [each.error for each in (*undisturbed, *streams) if each.error is not None]
    pairs = zip(streams, undisturbed, strict=True)
    num_different = sum(stream.text != before.text for stream, before in pairs)
    pauses_s = [stream.pause_s(lost_s) for stream in streams]
    found = {
        "cluster_s": round(up_s - begun_s, 1),
        "ready_s": round(ready_s - up_s, 1),
        "pauses_s": [None if each is None else round(each, 1) for each in pauses_s],
        "errors": errors,
        "num_different": num_different,
    }
    sys.stdout.write(json.dumps(found) + "\n")
    return 1 if errors or num_different else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
