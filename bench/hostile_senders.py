"""Sends the hostile grammars of `bench.hostile` from a process of its own.

    python -m bench.hostile_senders PORT PATH NUM_SENDERS      started by bench.hostile

In the field, an attacker computes on another machine. So all bodies are built before the
measurement, answers are parsed after it, and during it the process only sends and waits. A line
`FIRST LAST` on stdin posts these grammars, each sender's next one as soon as it has an answer. The
reply is a line of JSON, a list of [name, begun_s, ended_s, outcome], in seconds of the machine's
monotonic clock.
"""

import contextlib
import http.client
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from constraints.spec import Kind
from tests.constraints.hostile import Hostile, hostile

GENERATE, CHECK = "/generate", "/constraints/check"
_TYPES = {kind: kind.value for kind in Kind} | {Kind.JSON_SCHEMA: "json"}
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Answer:
    name: str
    begun_s: float
    ended_s: float
    status: int | str
    body: bytes

    def fields(self) -> tuple[str, float, float, str]:
        """A status, or the reason of a refusal."""
        came = str(self.status)
        if self.status == 422:
            reason = json.loads(self.body).get("constraint", {}).get("reason", "validation")
            came = str(reason)
        return self.name, self.begun_s, self.ended_s, came


def _body(each: Hostile, path: str) -> bytes:
    value: Any = each.spec.text
    if each.spec.kind is Kind.JSON_SCHEMA:
        value = json.loads(value)
    grammar = {"type": _TYPES[each.spec.kind], "value": value}
    if path == CHECK:
        return json.dumps({"grammar": grammar, "text": "a"}).encode()
    parameters = {"grammar": grammar, "max_new_tokens": 4}
    return json.dumps({"inputs": "Once", "parameters": parameters}).encode()


def _post(port: int, path: str, name: str, body: bytes) -> _Answer:
    begun_s = time.monotonic()
    status: int | str
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, _TIMEOUT_S)) as server:
        try:
            server.request("POST", path, body, {"content-type": "application/json"})
            answer = server.getresponse()
            status, content = answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            status, content = type(error).__name__, b""
    return _Answer(name, begun_s, time.monotonic(), status, content)


def main(argv: Sequence[str]) -> int:
    """Posts the grammars that each line of stdin names, until its end."""
    port, path, num_senders = int(argv[0]), argv[1], int(argv[2])
    bodies = [(each.name, _body(each, path)) for each in hostile()]
    print("ready", flush=True)
    with ThreadPoolExecutor(num_senders) as senders:
        for line in sys.stdin:
            first, last = map(int, line.split())
            answers = list(senders.map(lambda it: _post(port, path, *it), bodies[first:last]))
            print(json.dumps([answer.fields() for answer in answers]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
