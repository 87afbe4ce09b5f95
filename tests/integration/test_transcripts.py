"""docs/lmtp.md shows what a server says: every transcript is replayed."""

import asyncio
from pathlib import Path

from tests.integration.server import launched
from tests.integration.transcripts import is_alike, replay, transcripts

DOCUMENT = Path(__file__).parents[2] / "docs" / "lmtp.md"


def test_the_transcripts_of_the_document_are_what_the_server_says() -> None:
    blocks = transcripts(DOCUMENT.read_text())
    with launched("--served-model-name", "demo", "--dtype", "bfloat16") as server:
        said = [asyncio.run(replay(server.port, block)) for block in blocks]

    assert sum(len(block) for block in blocks) > 15
    for block, answers in zip(blocks, said, strict=True):
        for exchange, told in zip(block, answers, strict=True):
            assert [command for command, _ in told] == [c for c, _ in exchange.answers]
            for (_, ours), (_, theirs) in zip(exchange.answers, told, strict=True):
                assert is_alike(ours, theirs), (exchange.frame, ours, theirs)
