"""The file that every call of the model is written to."""

import json
from pathlib import Path

from client.query import run
from tests.client.query.running.scripted_model import ScriptedModel, in_turn


async def test_a_line_of_the_trace_file_is_one_whatever_was_written(tmp_path: Path) -> None:
    path, odd = tmp_path / "calls.jsonl", "é\x85\u2028\u2029\x0b\n\ud800"

    await run('"[X]"', model=ScriptedModel(in_turn(odd)), trace=path)

    (line,) = path.read_text().splitlines()
    assert json.loads(line)["answer"]["text"] == odd
    assert "é" in line
