"""Whatever a field holds, the answer is JSON and the server's own faults are none."""

from typing import Any

import pytest

from router.http.openai.schema import ChatBody, CompletionBody
from tests.fakes import FakeShard
from tests.router.http.harness import housing
from tests.router.http.openai.asking import CHAT, COMPLETIONS, HI
from tests.router.rig import PATIENT

VALUES: list[Any] = [
    True, 0, -1, 1, 10**18, 10**40, 0.5, -1e300, "", "x", "none", "\x00", "🙂" * 50, [], [0], [""],
    [None], [[]], [{}], {}, {"": None}, {"type": "x"}, {"type": None}, {"5": 1}, {"name": "x"},
    [{"type": "function", "function": {}}], [{"role": "user", "content": [{}]}],
    {"type": "json_schema", "json_schema": {}, "value": {}}, {"json": {}, "regex": "("},
]  # fmt: skip
HARMLESS = {"stream"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "field"),
    [(CHAT, name) for name in sorted({*ChatBody.model_fields} - HARMLESS)]
    + [(COMPLETIONS, name) for name in sorted({*CompletionBody.model_fields} - HARMLESS)],
)
async def test_no_value_of_a_field_is_a_fault_of_the_server(path: str, field: str) -> None:
    asked: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "ab"}
    async with housing(FakeShard(), timeouts=PATIENT) as house, house.client as client:
        for value in VALUES:
            for streams in (False, True):
                limits = {"max_tokens": 1, "stream": streams}
                answer = await client.post(path, json={**asked, **limits, field: value})

                told = f"{field}={value!r}: {answer.text[:300]}"
                assert answer.status_code in (200, 400, 404, 422), told
                if answer.status_code != 200:
                    error = answer.json()["error"]
                    assert error["message"], told
                    assert error["param"], told
                elif streams:
                    assert answer.text.endswith("data: [DONE]\n\n"), told
                    assert '"error"' not in answer.text, told
