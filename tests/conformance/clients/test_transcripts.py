"""curl and what it is answered, byte for byte, from a router over a fake shard.

A transcript is a command behind `$ `, an empty line, and the answer as curl shows it. What differs
from time to time is masked, by `MASKS` and nothing else. To record anew what is answered now:

    make conformance-transcripts
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conformance.serving import Fake

FOLDER = Path(__file__).with_name("transcripts")

# The rule: the name of what varies stays, its value becomes a word in angle brackets.
MASKS: tuple[tuple[bytes, bytes], ...] = (
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
    # Zeros and the length of a random seed come and go.
    (rb'("seed":)\d{6,}', rb"\1<seed>"),
)


def masked(answer: bytes) -> bytes:
    for pattern, word in MASKS:
        answer = re.sub(pattern, word, answer)
    return answer


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_curl_is_answered_byte_for_byte(
    fake: Fake, path: Path, request: pytest.FixtureRequest
) -> None:
    command, _, expected = path.read_bytes().partition(b"\n\n")
    words = shlex.split(command.decode().removeprefix("$ ").replace("$URL", fake.url))
    said = subprocess.run(words, capture_output=True, timeout=30, check=False)
    assert (said.returncode, said.stderr) == (0, b"")
    answer = masked(said.stdout)
    if request.config.getoption("--write-transcripts"):
        path.write_bytes(command + b"\n\n" + answer)
    else:
        assert answer == expected
