"""The server's load on the page, and the page's own speed."""

import re
import threading
import urllib.request

from playwright.sync_api import Browser, Page, expect

from tests.conformance.browser.browsing import Visit, visiting
from tests.conformance.serving import Served

MAX_LOAD_MS = 500
# Canvases remember what is written in them.
REMEMBERS = """
const context = CanvasRenderingContext2D.prototype;
const { fillText, clearRect } = context;
context.fillText = function (text, ...rest) {
  (this.canvas.written ??= []).push(text);
  return fillText.call(this, text, ...rest);
};
context.clearRect = function (...rest) {
  this.canvas.written = [];
  return clearRect.apply(this, rest);
};
"""


TICKS = "() => [...document.querySelectorAll('.plot canvas')].map(each => each.written ?? [])"


def ticks(visit: Visit) -> list[list[str]]:
    """What stands at the axes of each plot, once all are drawn."""
    visit.until(f"() => ({TICKS})().every(each => each.length >= 4)")
    written: list[list[str]] = visit.page.evaluate(TICKS)
    return written


def rows(page: Page, selector: str) -> set[int]:
    """How many elements the rows of a grid have."""
    tops = page.locator(selector).evaluate_all("all => all.map(each => each.offsetTop)")
    return {tops.count(top) for top in tops}


def ask(url: str) -> None:
    body = b'{"inputs": "Once", "parameters": {"max_new_tokens": 1000, "ignore_eos": true}}'
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{url}/generate", body, headers)
    for _ in range(4):
        with urllib.request.urlopen(request) as answer:
            answer.read()


def test_load_is_shown_while_it_is_there(visit: Visit) -> None:
    page = visit.page
    page.add_init_script(REMEMBERS)
    visit.open("#live")
    expect(page.get_by_role("main").get_by_role("status")).to_have_text("Ready")
    empty = page.locator(".plot.none", has_text="Time to first token")
    expect(empty).to_contain_text("No token in this time.")
    asking = [threading.Thread(target=ask, args=(visit.url,)) for _ in range(4)]
    for each in asking:
        each.start()
    running = page.locator(".tiles div", has_text="Running").locator("dd")
    expect(running).to_have_text("4")
    speed = page.locator(".tiles div", has_text="Tokens/s").locator("dd")
    expect(speed).not_to_have_text("0")
    expect(page.locator(".tiles div", has_text="Between tokens").locator("dd")).to_contain_text(
        "ms"
    )
    expect(empty).to_have_count(0)
    visit.shoot("live")
    written = ticks(visit)
    for each in asking:
        each.join()

    assert len(written) == 6
    assert all(len(set(each)) == len(each) for each in written), written
    sequences = [each for each in written[0] if ":" not in each]
    assert all(each.isdecimal() for each in sequences), sequences
    expect(running).to_have_text("0")
    page.reload()
    # What was seen before is still there.
    expect(empty).to_have_count(0)
    expect(page.locator(".facts")).to_contain_text("dense, f32")


def test_tiles_and_plots_have_no_hole_at_any_width(visit: Visit) -> None:
    page = visit.page
    visit.open("#live")
    for width in (1400, 1280, 1000, 800, 600, 360):
        page.set_viewport_size({"width": width, "height": 900})
        visit.until("width => document.documentElement.scrollWidth === width", width)
        for selector in (".tiles div", ".plot"):
            assert len(rows(page, selector)) == 1, (width, selector)


def test_times_and_numbers_are_the_readers(chrome: Browser, served: Served) -> None:
    with visiting(chrome, served.url, locale="de-DE") as visit:
        visit.open()
        visit.send("Hello")
        visit.ends(1)
        ended = visit.page.locator(".message.assistant footer")
        expect(ended).to_contain_text(re.compile(r" \d,\d\d s "))
        visit.open("#live")
        newest = visit.page.locator(".plot .u-legend .u-value").first
        expect(newest).to_have_text(re.compile(r"^\d?\d:\d\d:\d\d$"))


def test_the_page_is_there_at_once(visit: Visit) -> None:
    """One of a few times: whoever else has the processors meanwhile makes it later, not sooner."""
    visit.open()
    took_ms = []
    for _ in range(10):
        visit.open()
        took_ms.append(
            visit.page.evaluate("() => performance.getEntriesByType('navigation')[0].loadEventEnd")
        )

    assert 0 < min(took_ms) < MAX_LOAD_MS
