"""curl and what it is answered, byte for byte, from a router over a fake shard.

A transcript is a command behind `$ `, an empty line, and the answer as curl shows it. What differs
from time to time is masked, by `MASKS` and nothing else. To record anew what is answered now:

    make conformance-transcripts

Those whose name begins with `locked-` are from a server with an API key, those with `full-` from
one that has no room for another request.
"""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.serving import Fake, faked, occupied

FOLDER = Path(__file__).with_name("transcripts")

# The rule: the name of what varies stays, its value becomes a word in angle brackets.
MASKS: tuple[tuple[bytes, bytes], ...] = (
    # Python has changed its mind about the words of 413 and 422.
    (rb"\A(HTTP/1.1 \d+) .*?(\r\n)", rb"\1 <phrase>\2"),
    (rb"(?mi)^(date: ).*?(\r?)$", rb"\1<date>\2"),
    (rb"(?mi)^(x-request-id: |request-id: )[0-9a-f]{32}(\r?)$", rb"\1<id>\2"),
    (
        rb"(?mi)^(x-(?:compute|total|validation|queue|inference)-time: |x-time-per-token: )"
        rb"[\d.]+(\r?)$",
        rb"\1<time>\2",
    ),
    (rb'("(?:created|created_at|completed_at)":)[\d.]+', rb"\1<time>"),
    (rb"\b((?:chatcmpl|cmpl|msg|resp|req|rs)[-_])[0-9a-f]{24,}", rb"\1<id>"),
    (rb'("request_id":")[0-9a-f]{32}', rb"\1<id>"),
    (rb'("(?:system_fingerprint|version)":")\d+\.\d+\.\d+', rb"\1<version>"),
    # How long the queue takes is measured.
    (rb"(?mi)^(retry-after(?:-ms)?: )\d+(\r?)$", rb"\1<wait>\2"),
    (rb'("retry_after(?:_ms)?":)\d+', rb"\1<wait>"),
    (rb'(?si)(\ncontent-length: )\d+(?=.*"shard_seconds")', rb"\1<length>"),
    (rb'("(?:shard|kv_block)_seconds":)[\d.e-]+', rb"\1<time>"),
    # Zeros and the length of a random seed come and go.
    (rb'("seed":)\d{6,}', rb"\1<seed>"),
)


def masked(answer: bytes) -> bytes:
    for pattern, word in MASKS:
        answer = re.sub(pattern, word, answer)
    return answer


@pytest.fixture(scope="module")
def locked() -> Iterator[Fake]:
    """A server that wants the key `secret`."""
    with faked("--api-key", "secret") as fake:
        yield fake


@pytest.fixture(scope="module")
def full() -> Iterator[Fake]:
    """A server that is busy with all that it can take."""
    with faked("--max-concurrent-requests", "1") as fake:
        fake.order(delay_s=0.2)
        with occupied(fake, num_tokens=500):
            yield fake


def _transcripts() -> list[Any]:
    paths = sorted(FOLDER.glob("*.txt"))
    kinds = [path.stem.partition("-")[0] for path in paths]
    return [
        pytest.param(path, kind if kind in ("locked", "full") else "fake", id=path.stem)
        for path, kind in zip(paths, kinds, strict=True)
    ]


@pytest.mark.parametrize(("path", "server"), _transcripts())
def test_curl_is_answered_byte_for_byte(
    path: Path, server: str, request: pytest.FixtureRequest
) -> None:
    fake: Fake = request.getfixturevalue(server)
    command, _, expected = path.read_bytes().partition(b"\n\n")
    words = shlex.split(command.decode().removeprefix("$ ").replace("$URL", fake.url))
    said = subprocess.run(words, capture_output=True, timeout=30, check=False)
    assert (said.returncode, said.stderr) == (0, b"")
    answer = masked(said.stdout)
    if request.config.getoption("--write-transcripts"):
        path.write_bytes(command + b"\n\n" + answer)
    else:
        assert answer == expected
