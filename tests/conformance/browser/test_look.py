"""The chat holds still: nothing moves by itself, its end is followed, what is active is seen."""

import re

import pytest
from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import NARROW, Visit, visiting
from tests.conformance.serving import Served

# Two answers are longer than these pages.
LOW, WIDE_AND_LOW = (900, 420), (1400, 460)
LONG_ANSWERS = {"tandem.parameters": '{"ignore_eos": "on", "max_tokens": "120", "seed": "1"}'}


def remember(visit: Visit, kept: dict[str, str]) -> None:
    """Opens the page in a browser that kept this from before."""
    visit.open()
    visit.page.evaluate("(kept) => Object.assign(localStorage, kept)", kept)
    visit.page.reload()


def is_at_its_end(visit: Visit) -> None:
    """Waits until nothing of the messages is below what is shown."""
    script = "(it) => it.scrollHeight - it.scrollTop - it.clientHeight < 2"
    visit.until(f"() => ({script})(document.querySelector('[role=log]'))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_moves_on_hover_and_send_and_nobody_is_kept_out(
    chrome: Browser, served: Served, scheme: str
) -> None:
    with visiting(chrome, served.url, size=WIDE_AND_LOW, scheme=scheme) as visit:
        page = visit.page
        remember(visit, LONG_ANSWERS)
        page.get_by_label("Show tokens").check()
        page.get_by_label("Example").select_option("One short sentence")
        expect(page.get_by_role("status")).to_contain_text("Can be satisfied")
        assert visit.findings() == []
        visit.moved()
        visit.send("Who lives in the town?")
        visit.ends(1)
        assert visit.moved() == []
        page.get_by_role("button", name="Turn the constraint off").click()
        visit.moved()
        visit.send("Tell me a story.")
        visit.ends(2)
        assert visit.moved() == []

        for name in ("Completion", "Copy", "Regenerate", "Seed", "Parameters", "Send"):
            page.get_by_text(name, exact=True).and_(page.locator(":visible")).first.hover()
        page.locator(".token-list .token").nth(3).hover()
        expect(page.get_by_role("tooltip")).to_be_visible()
        assert visit.findings() == []
        page.locator(".token-list .token").last.hover()
        assert visit.moved() == []
        visit.shoot(f"hover-{scheme}")


def test_a_send_goes_to_the_end_and_a_reader_who_scrolls_up_stays(
    chrome: Browser, served: Served
) -> None:
    with visiting(chrome, served.url, size=LOW) as visit:
        page = visit.page
        remember(visit, LONG_ANSWERS)
        messages = page.get_by_role("log")
        to_end = page.get_by_role("button", name="To the end")
        for count in (1, 2):
            visit.send("Tell me a story.")
            visit.ends(count)
        is_at_its_end(visit)
        messages.hover()
        page.mouse.wheel(0, -200)
        expect(to_end).to_be_visible()

        visit.send("And another one.")
        expect(to_end).to_be_hidden()
        visit.ends(3)
        is_at_its_end(visit)

        visit.send("And the last one.")
        messages.hover()
        page.mouse.wheel(0, -200)
        expect(to_end).to_be_visible()
        visit.ends(4)
        rest = messages.evaluate("(it) => it.scrollHeight - it.scrollTop - it.clientHeight")
        assert rest > 100
        to_end.click()
        expect(to_end).to_be_hidden()
        is_at_its_end(visit)


def test_what_is_active_is_seen_above_the_message_and_turned_off_there(
    chrome: Browser, served: Served
) -> None:
    with visiting(chrome, served.url, size=NARROW) as visit:
        page = visit.page
        visit.open()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Example").select_option("A date")
        page.get_by_text("Parameters", exact=True).click()
        page.get_by_label("Temperature", exact=True).fill("-1")
        page.get_by_role("button", name="Close").and_(page.locator(":visible")).click()
        page.reload()
        chips = page.locator(".chip")

        expect(chips.first).to_contain_text("Constraint Regular expression 20[0-9]{2}")
        expect(chips.last).to_have_text("✗ Temperature -1✕")
        page.get_by_role("button", name="Back to the default: Temperature").click()
        visit.moved()
        visit.send("Hello")
        visit.ends(1)
        assert visit.moved() == []
        expect(page.locator(".message.assistant .markdown")).to_have_text(re.compile("^20"))
        visit.shoot("active-narrow")
        page.get_by_role("button", name="Constraint Regular expression").click()
        # What is focused reads the key.
        expect(page.locator(".side.settings.open:focus-within")).to_have_count(1)
        expect(page.get_by_label("Language")).to_be_visible()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Turn the constraint off").click()
        expect(chips).to_have_count(0)


def test_enter_during_an_answer_sends_behind_it_and_says_so(slow: Visit) -> None:
    page = slow.page
    remember(slow, {"tandem.parameters": '{"ignore_eos": "on", "max_tokens": "400"}'})
    slow.send("Tell me a story.")
    message = page.get_by_label("Message", exact=True)
    message.fill("Hello")
    message.press("Enter")
    expect(page.get_by_role("status").filter(has_text="Your message")).to_have_text(
        "Your message is sent when this answer ends, or is stopped"
    )
    expect(page.locator(".message.user")).to_have_count(1)
    message.press("Escape")

    expect(page.locator(".message.user").last).to_contain_text("Hello")
    expect(message).to_have_value("")
    expect(page.locator(".message.assistant").first).to_contain_text("stopped")


def test_the_header_is_one_row_and_the_theme_has_a_name(chrome: Browser, served: Served) -> None:
    with visiting(chrome, served.url, size=NARROW) as visit:
        page = visit.page
        visit.open()
        header = page.get_by_role("banner")
        boxes = [each.bounding_box() for each in header.locator(":is(a, button):visible").all()]
        tops = [box["y"] for box in boxes if box is not None]
        bottoms = [box["y"] + box["height"] for box in boxes if box is not None]
        assert max(tops) < min(bottoms)
        page.get_by_role("button", name="Settings").click()
        page.get_by_role("button", name="Theme: System").click()
        page.get_by_role("button", name="Theme: Light").click()

        expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        expect(page.get_by_role("button", name="Theme: Dark")).to_be_visible()
        visit.open("#live")
        named = header.get_by_role("button", name="Theme: Dark")
        expect(named).to_have_text("Theme", use_inner_text=True)
