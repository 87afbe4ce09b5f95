"""The API's page: every operation, what it reads and answers, and sending it."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import NARROW, WIDE, Visit, visiting
from tests.conformance.serving import Served, get

# What is kept by the server, or is not there yet, is needed for these.
NOT_AT_ONCE = ("adapter", "/v1/batches", "/v1/files")


def operations(served: Served) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and the rest of all operations of the document."""
    paths = json.loads(get(f"{served.url}/api-doc/openapi.json"))["paths"]
    return [
        (method.upper(), path, operation)
        for path, methods in paths.items()
        for method, operation in methods.items()
    ]


def test_every_operation_is_there_and_unfolds(visit: Visit, served: Served) -> None:
    visit.open("docs")
    rows = visit.page.locator(".operation > summary")
    expected = {
        " ".join(f"{method} {path} {operation['summary']}".split())
        for method, path, operation in operations(served)
    }
    expect(rows).to_have_count(len(expected))
    assert {" ".join(text.split()) for text in rows.all_inner_texts()} == expected
    for row in rows.all():
        row.click()
    sends = visit.page.get_by_role("button", name="Send", exact=True)
    expect(sends).to_have_count(len(expected))


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_reader_of_the_api_is_kept_out(
    chrome: Browser, served: Served, size: tuple[int, int]
) -> None:
    for scheme in ("light", "dark"):
        with visiting(chrome, served.url, size=size, scheme=scheme) as visit:
            page = visit.page
            visit.open("docs")
            page.get_by_label("Search operations").fill("a chat")
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            send = page.get_by_role("button", name="Send", exact=True)
            expect(send).to_be_visible()
            visit.moved()
            send.press("Enter")
            expect(page.get_by_role("status")).to_contain_text("200 OK · application/json")
            page.locator("summary").first.hover()
            page.get_by_role("button", name="Copy as curl").hover()
            assert visit.moved() == []
            page.get_by_text("Fields of messages").press("Enter")
            page.get_by_text("200 As asked for").press("Enter")
            expect(page.get_by_text("text/event-stream, each event")).to_be_visible()
            assert visit.findings() == []
            visit.fits(size[0])
            visit.shoot(f"docs-{'wide' if size == WIDE else 'narrow'}-{scheme}")


def test_what_stands_in_the_forms_is_answered(visit: Visit, served: Served) -> None:
    page = visit.page
    visit.open("docs")
    at_once = [
        (path, operation)
        for _, path, operation in operations(served)
        if "{" not in path and not any(each in path for each in NOT_AT_ONCE)
    ]
    assert len(at_once) > 20
    for path, operation in at_once:
        row = page.locator(".operation", has=page.get_by_text(operation["summary"], exact=True))
        row = row.filter(has=page.get_by_text(path, exact=True))
        row.locator("summary").first.click()
        row.get_by_role("button", name="Send", exact=True).click()
        expect(row.get_by_role("status"), path).to_contain_text("200 OK")


def test_an_answer_is_shown_while_it_is_streamed_and_stopped(slow: Visit) -> None:
    page = slow.page
    slow.open("docs#generate_stream")
    body = {"inputs": "Once", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}
    page.get_by_label("Body").fill(json.dumps(body))
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_label("Answer", exact=True)).to_contain_text('"index":5,')
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)

    expect(page.get_by_label("Answer", exact=True)).to_contain_text('"generated_text":null')
    copied = slow.copied(page.get_by_role("button", name="Copy as curl"))
    assert copied.startswith(f"curl -X POST '{slow.url}/generate_stream'")


def test_a_path_is_filled_in_and_a_file_is_sent(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    file = tmp_path / "in.jsonl"
    file.write_text("{}\n")
    visit.provoked.append("status of 403")
    visit.open("docs#openai_get_model")
    page.get_by_label("model_name").fill("demo")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_label("Answer", exact=True)).to_contain_text('"object": "model"')
    page.get_by_text("Describe a model").click()
    page.get_by_text("Upload a file").click()
    page.get_by_label("file", exact=True).set_input_files(file)
    with page.expect_request("**/v1/files") as sent:
        page.get_by_role("button", name="Send", exact=True).click()

    assert sent.value.headers["content-type"].startswith("multipart/form-data; boundary=")
    # Batches are off here, and the answer is shown all the same.
    expect(page.get_by_role("status")).to_contain_text("403 Forbidden")
