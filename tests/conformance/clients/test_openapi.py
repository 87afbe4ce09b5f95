"""schemathesis against our OpenAPI document: what is asked of it and what is answered agree.

No answer that the document does not tell of (status, media type, schema, for events too), none of
5xx, none after more than a second; whatever is sent.
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.serving import ROOT, faked

NUM_REQUESTS = 5000
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "answers_within_a_second",
)


# Most of them are coverage: each field's bounds, and what is beyond them.
@pytest.mark.parametrize("num_fuzzed", ["2", pytest.param("10", marks=pytest.mark.nightly)])
def test_thousands_of_made_up_requests_are_answered_as_documented(
    tmp_path: Path, num_fuzzed: str
) -> None:
    report = tmp_path / "report.ndjson"
    with faked("--max-total-tokens", "64", "--batch-file", str(tmp_path / "batches.db")) as fake:
        ended = subprocess.run(
            [
                Path(sys.executable).with_name("st"),
                *("run", f"{fake.url}/api-doc/openapi.json", "--no-color"),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", num_fuzzed),
                *("--checks", ",".join(CHECKS), "--continue-on-failure", "--no-shrink"),
                *("--generation-deterministic", "--request-timeout", "10"),
                *("--report", "ndjson", "--report-ndjson-path", str(report)),
            ],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.conformance.clients.openapi_hooks",
            },
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert ended.returncode == 0, ended.stdout[-20_000:] + ended.stderr[-5_000:]
    answers = _answers(report)
    assert sum(answers.values()) >= NUM_REQUESTS
    assert not [key for key in answers if key[1] >= 500]
    operations = {operation for operation, _ in answers}
    served = {operation for operation, status in answers if status == 200}
    # Little was stored that these could find, and no folder of adapters is served.
    unknown = {
        name
        for name in operations
        if "/v1/responses/{response_id}" in name
        or name.endswith(("_lora_adapter", "POST /v1/batches"))
        or re.search(r"/v1/(files|batches)/\{id\}", name)
    }
    assert operations - unknown <= served


def _answers(report: Path) -> Counter[tuple[str, int]]:
    """How often each operation answered each status."""
    answers: Counter[tuple[str, int]] = Counter()
    with report.open() as lines:
        for line in lines:
            recorder: dict[str, Any] = (
                json.loads(line).get("ScenarioFinished", {}).get("recorder", {})
            )
            for exchange in recorder.get("interactions", {}).values():
                assert exchange["response"] is not None, exchange["request"]
                answers[recorder["label"], exchange["response"]["status_code"]] += 1
    return answers
