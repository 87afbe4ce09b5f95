"""A server that fails by bugs again and again is not ready."""

import httpx
import pytest

from router.http.errors import InternalErrors
from router.text.chat_template import ChatTemplate
from tests.fakes import FakeShard
from tests.router.http.harness import housing

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}


def failed(errors: InternalErrors, num_times: int) -> InternalErrors:
    for _ in range(num_times):
        errors.ended("POST", "internal_error")
    return errors


def test_five_in_a_row_are_many() -> None:
    assert not failed(InternalErrors(), 4).are_many
    assert failed(InternalErrors(), 5).are_many


@pytest.mark.parametrize(
    ("method", "error_type", "expected"),
    [("POST", None, False), ("GET", None, True), ("POST", "validation", True)],
)
def test_one_that_succeeds_takes_it_back(
    method: str, error_type: str | None, expected: bool
) -> None:
    errors = failed(InternalErrors(), 5)
    errors.ended(method, error_type)
    assert errors.are_many == expected


def test_a_minute_without_any_takes_it_back() -> None:
    now_s = 0.0
    errors = failed(InternalErrors(lambda: now_s), 5)
    now_s = 61.0
    assert not errors.are_many
    assert not failed(errors, 1).are_many


async def test_ready_says_so_and_live_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(self: ChatTemplate, *_: object, **__: object) -> str:
        raise ZeroDivisionError

    async with housing(FakeShard()) as house, house.client as client:

        async def statuses() -> list[int]:
            paths = ("/health/ready", "/health", "/health/live")
            return [(await client.get(path)).status_code for path in paths]

        async def chat() -> httpx.Response:
            return await client.post("/v1/chat/completions", json=CHAT)

        with monkeypatch.context() as broken:
            broken.setattr(ChatTemplate, "render", break_down)
            for _ in range(5):
                assert (await chat()).status_code == 500
        ailing = await statuses()
        assert (await chat()).status_code == 200
        well = await statuses()

    assert (ailing, well) == ([503, 503, 200], [200, 200, 200])
