"""The page under hostile output and refusals, for every reader, on every screen."""

import json

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.conformance.browser.browsing import NARROW, WIDE, Visit, visiting
from tests.conformance.serving import Served, launched

HOSTILE = """<script>document.title = "taken"</script><img src=x onerror="document.title = 'taken'">
<iframe src="https://elsewhere.example/"></iframe><style>body { display: none }</style>

[run](javascript:document.title='taken') ![spy](https://elsewhere.example/spy.png)
[real](https://elsewhere.example/page) <a href="data:text/html,x" onclick="alert(1)">x</a>"""
KEY = "a-key-of-this-test"


def test_hostile_output_of_the_model_stays_text(visit: Visit) -> None:
    page = visit.page
    visit.open()
    page.get_by_label("Language").select_option("Regular expression")
    pattern = "".join(f"\\{char}" if char in "\\[](){}.*+?^$|" else char for char in HOSTILE)
    page.get_by_label("Constraint", exact=True).and_(page.locator("textarea")).fill(pattern)
    visit.send("Hi")
    visit.ends(1)

    answer = page.locator(".message.assistant .markdown")
    # Nothing of it is lost.
    expect(answer).to_contain_text('<script>document.title = "taken"</script><img src=x')
    expect(page).to_have_title("Tandem")
    for tag in ("script", "img", "iframe", "style", "[onclick]", "[onerror]", "[href^=javascript]"):
        expect(answer.locator(tag), tag).to_have_count(0)
    link = answer.locator("a[href]")
    expect(link).to_have_attribute("href", "https://elsewhere.example/page")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    visit.shoot("hostile")


def test_a_line_of_100_kb_harms_nothing(visit: Visit) -> None:
    """What no small model writes by itself: the network's answer is written here."""
    page = visit.page
    chunk = {"choices": [{"index": 0, "delta": {"content": "*a_`<b" * 500}, "logprobs": None}]}
    body = f"data: {json.dumps(chunk)}\n\n" * 34 + "data: [DONE]\n\n"

    def answer(route: Route) -> None:
        route.fulfill(status=200, content_type="text/event-stream", body=body)

    visit.open()
    page.route("**/v1/chat/completions", answer)
    visit.send("Hi")
    visit.ends(1)

    expect(page.locator(".message.assistant .plain")).to_have_text("*a_`<b" * 17_000)
    visit.fits(WIDE[0])


def test_the_key_is_asked_for_once(chrome: Browser) -> None:
    with launched("--api-key", KEY) as guarded, visiting(chrome, guarded.url) as visit:
        page = visit.page
        visit.provoked.append("status of 401")
        visit.open()
        field = page.get_by_role("textbox", name="API key")
        field.fill("a wrong one")
        page.get_by_role("button", name="Use it").click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_have_text(
            "This key was refused."
        )
        assert visit.findings() == []
        field.fill(KEY)
        page.get_by_role("button", name="Use it").click()
        expect(field).to_be_hidden()
        visit.send("Hello")
        visit.ends(1)
        page.reload()
        visit.send("Hello again")
        visit.ends(2)
        expect(field).to_be_hidden()
        visit.open("docs")
        page.get_by_text("/tokenize", exact=True).click()
        page.get_by_role("button", name="Send", exact=True).click()
        expect(page.get_by_role("status")).to_contain_text("200")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_no_reader_is_kept_out(
    chrome: Browser, served: Served, size: tuple[int, int], scheme: str
) -> None:
    with visiting(chrome, served.url, size=size, scheme=scheme) as visit:
        page = visit.page
        name = f"{'wide' if size == WIDE else 'narrow'}-{scheme}"
        visit.open()
        visit.send("What is the capital of France?")
        visit.ends(1)
        if size == NARROW:
            page.get_by_role("button", name="Settings").click()
        page.get_by_label("Show tokens").check()
        page.get_by_label("Example").select_option("A date")
        expect(page.get_by_role("status")).to_contain_text("Can be satisfied")
        page.get_by_text("Parameters", exact=True).click()
        page.get_by_text("As code", exact=True).click()
        assert visit.findings() == []
        visit.shoot(f"settings-{name}")
        if size == NARROW:
            page.get_by_role("button", name="Close").and_(page.locator(":visible")).click()
        visit.shoot(f"chat-{name}")
        for place in ("#completion", "#live"):
            visit.open(place)
            if place == "#live":
                expect(page.get_by_role("main").get_by_role("status")).to_have_text("Ready")
            assert visit.findings() == []
            visit.fits(size[0])
            visit.shoot(f"{place[1:]}-{name}")


def test_everything_is_reached_by_keyboard(visit: Visit) -> None:
    page = visit.page
    visit.open()
    page.keyboard.type("Hello")
    page.keyboard.press("Enter")
    visit.ends(1)
    page.keyboard.press("Shift+Tab")
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "() => document.activeElement.innerText || document.activeElement.ariaLabel"
            )
        )

    assert {"Chat", "Completion", "Live", "New chat", "Regenerate", "Edit"} <= reached
