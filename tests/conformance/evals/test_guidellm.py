"""guidellm's benchmark against the server: it ends well and every request succeeded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.serving import Served

NUM_REQUESTS = 12
PROMPT_LEN = 32
OUTPUT_LEN = 16


@pytest.mark.parametrize("request_format", ["/v1/chat/completions", "/v1/completions"])
def test_a_short_benchmark_has_only_successes(
    served: Served, tmp_path: Path, request_format: str
) -> None:
    report = tmp_path / "report.json"
    backend = f"kind=openai_http,target={served.url},model={served.model}"
    words = {
        "--backend": f"{backend},request_format={request_format}",
        "--profile": "kind=concurrent,streams=4",
        "--constraint": f"kind=max_requests,count={NUM_REQUESTS}",
        "--tokenizer": "kind=hf_auto",
        "--data": (f"kind=synthetic_text,prompt_tokens={PROMPT_LEN},output_tokens={OUTPUT_LEN}"),
        "--output": f"kind=json,path={report}",
    }
    guidellm = Path(sys.executable).with_name("guidellm")
    ended = subprocess.run(
        [guidellm, "run", "--disable-console-interactive", *_flat(words)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert _totals(benchmark) == {"successful": NUM_REQUESTS, "errored": 0, "incomplete": 0}
    for request in benchmark["requests"]["successful"]:
        assert request["output_tokens"] == OUTPUT_LEN
        assert request["prompt_tokens"] >= PROMPT_LEN


def _flat(words: dict[str, str]) -> list[str]:
    return [word for pair in words.items() for word in pair]


def _totals(benchmark: dict[str, Any]) -> dict[str, int]:
    totals = benchmark["metrics"]["request_totals"]
    return {name: totals[name] for name in ("successful", "errored", "incomplete")}
