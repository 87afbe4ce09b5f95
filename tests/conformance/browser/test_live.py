"""The server's load on the page, its speed, and the API's page."""

import threading
import urllib.request

from playwright.sync_api import expect

from tests.conformance.browser.browsing import Visit

MAX_LOAD_MS = 500


def ask(url: str) -> None:
    body = b'{"inputs": "Once", "parameters": {"max_new_tokens": 1000, "ignore_eos": true}}'
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", body, headers)
    for _ in range(4):
        with urllib.request.urlopen(request) as answer:
            answer.read()


def test_load_is_shown_while_it_is_there(visit: Visit) -> None:
    page = visit.page
    visit.open("#live")
    expect(page.get_by_role("status")).to_have_text("Ready")
    asking = [threading.Thread(target=ask, args=(visit.url,)) for _ in range(4)]
    for each in asking:
        each.start()
    running = page.locator(".tiles div", has_text="Running").locator("dd")
    expect(running).to_have_text("4", timeout=10_000)
    speed = page.locator(".tiles div", has_text="Tokens/s").locator("dd")
    expect(speed).not_to_have_text("0")
    expect(page.locator(".tiles div", has_text="Between tokens").locator("dd")).to_contain_text(
        "ms"
    )
    visit.shoot("live")
    for each in asking:
        each.join()

    expect(running).to_have_text("0")
    expect(page.locator(".plot canvas")).to_have_count(5)
    expect(page.locator(".facts")).to_contain_text("dense, f32")


def test_the_page_is_there_at_once(visit: Visit) -> None:
    visit.open()
    visit.open()
    load_ms = visit.page.evaluate(
        "() => performance.getEntriesByType('navigation')[0].loadEventEnd"
    )

    assert 0 < load_ms < MAX_LOAD_MS


def test_the_api_is_documented_without_a_network(visit: Visit) -> None:
    page = visit.page
    visit.open("docs")
    page.get_by_text("/generate", exact=True).click()

    expect(page.get_by_role("button", name="Try it out").first).to_be_visible()
    visit.shoot("docs")
