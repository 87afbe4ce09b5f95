"""A supervisor in a process of its own, over processes in the places of router and shards.

    python -m tests.processes.supervised FOLDER CHANGES

They start within a moment, and do what the supervisor sees: listen, answer that they are ready,
stand by. The tests of recovery have real ones.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from launcher import BUNDLED_MODEL
from processes.logs import Console
from processes.supervisor import Supervisor
from tests.processes.test_deployment import deployment

# As the tiers do, these end with their launcher: 1 is PR_SET_PDEATHSIG.
_ENDS_WITH_LAUNCHER = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
_SHARD = f"""
import os, socket, sys
{_ENDS_WITH_LAUNCHER}

def serve(how):
    place = sys.argv[sys.argv.index("--uds-path") + 1] + "-" + os.environ["RANK"]
    if os.path.exists(place):
        os.unlink(place)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(place)
        listener.listen()
        print(os.getpid(), "serves,", how, flush=True)
        while True:
            listener.accept()[0].close()

if __name__ == "__main__":
    serve("cold")
"""
_STANDBY = """
import os, sys, time
from model_server.__main__ import serve

print(os.getpid(), "imports", flush=True)
while os.path.exists(os.environ["SLOW_IMPORTS"]):
    time.sleep(0.01)
print("standing by, in 0 MiB of memory", flush=True)
if sys.stdin.readline():
    serve("called up")
"""
_ROUTER = f"""
import os, socket
{_ENDS_WITH_LAUNCHER}

with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(os.environ["HTTP_PLACE"])
    listener.listen()
    while True:
        with listener.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
"""
SLOW_IMPORTS = "slow"
_TIERS = {
    "model_server/__init__.py": "",
    "model_server/__main__.py": _SHARD,
    "model_server/standby.py": _STANDBY,
    "router/__init__.py": "",
    "router/__main__.py": _ROUTER,
}


def main(folder: Path, changes: dict[str, object]) -> int:
    """Answers the supervisor's exit code."""
    for name, code in _TIERS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(code)
    plan = deployment(
        **{
            "model_id": str(BUNDLED_MODEL),
            "device": "cpu",
            "num_shard": 1,
            "max_restarts": 9,
            "standby_shards": True,
            "uds_path": str(folder / "shard"),
            "http_uds": folder / "http",
            **changes,
        }
    )
    environ = {
        **os.environ,
        # Before the repository, where the real ones are.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": str(folder),
        "HTTP_PLACE": str(folder / "http"),
        "SLOW_IMPORTS": str(folder / SLOW_IMPORTS),
    }

    async def run() -> int:
        return await Supervisor(plan, environ, Console()).run()

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
