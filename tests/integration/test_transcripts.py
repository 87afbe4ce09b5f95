"""docs/lmtp.md shows what a server says: every transcript is replayed."""

from pathlib import Path

import pytest

from tests.integration.server import RunningServer
from tests.integration.transcripts import is_alike, replay, transcripts

pytestmark = pytest.mark.slow

DOCUMENT = Path(__file__).parents[2] / "docs" / "lmtp.md"


async def test_the_transcripts_of_the_document_are_what_the_server_says(
    server: RunningServer,
) -> None:
    blocks = transcripts(DOCUMENT.read_text())
    said = [await replay(server.port, block) for block in blocks]

    assert sum(len(block) for block in blocks) > 15
    for block, answers in zip(blocks, said, strict=True):
        for exchange, told in zip(block, answers, strict=True):
            assert [command for command, _ in told] == [c for c, _ in exchange.answers]
            for (_, ours), (_, theirs) in zip(exchange.answers, told, strict=True):
                assert is_alike(ours, theirs), (exchange.frame, ours, theirs)
