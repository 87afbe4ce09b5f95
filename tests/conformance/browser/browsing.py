"""The page in a real Chromium, which may talk to its server and to nobody else."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Error,
    Locator,
    Page,
    Request,
    expect,
    sync_playwright,
)

from tests.conformance.serving import ROOT

# The newest screenshots, to be looked at.
SHOTS = ROOT / "build" / "page"
_AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
_FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]
# Of whatever is waited for: other tests may have the processors meanwhile.
_TIMEOUT_MS = 60_000
expect.set_options(timeout=_TIMEOUT_MS)
WIDE, NARROW = (1400, 900), (360, 740)
# What moves, as https://wicg.github.io/layout-instability/ has it; input before it is no excuse.
_WATCH_SHIFTS = """
const shifts = [];
const keep = (entries) => {
  for (const { sources } of entries)
    for (const { node } of sources) shifts.push(node?.outerHTML?.slice(0, 100) ?? "a text");
};
const observer = new PerformanceObserver((list) => keep(list.getEntries()));
observer.observe({ type: "layout-shift" });
window.takeShifts = () => {
  keep(observer.takeRecords());
  return shifts.splice(0);
};
"""
# What was changed is drawn by then.
_NEXT_FRAME = """
() => new Promise((done) => {
  requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done)));
})
"""
# What a page asks its server at once; without a key it is refused the first of it.
_IS_LOADED = """
() => performance.getEntriesByType("resource").some(
  ({ name, responseStatus }) => /\\/(info|openapi\\.json)$/.test(name) || responseStatus === 401
)
"""


@dataclass
class Visit:
    """A page of one browser profile. `troubles`: errors of scripts, and requests to elsewhere.
    `provoked`: words of those that a test is about, which the browser may tell of late."""

    page: Page
    url: str
    troubles: list[str] = field(default_factory=list)
    provoked: list[str] = field(default_factory=list)

    def open(self, place: str = "") -> None:
        """Goes to a place of the server, and waits until it is there."""
        self.page.goto(f"{self.url}/{place}")
        self.until(_IS_LOADED)
        self.page.evaluate(_NEXT_FRAME)

    def until(self, script: str, arg: object = None) -> None:
        """Waits until a function of the page returns true."""
        self.page.wait_for_function(script, arg=arg)

    def send(self, text: str) -> None:
        """Sends a message of a chat."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send", exact=True).click()

    def ends(self, num_answers: int) -> None:
        """Waits until so many answers are shown, all of them ended."""
        self.page.locator(".message.assistant footer .hint").nth(num_answers - 1).wait_for()

    def answers(self) -> list[str]:
        """The answers that are shown."""
        return list(self._answers().all_inner_texts())

    def shows(self, *answers: str) -> None:
        """Waits until these are the answers that are shown."""
        expect(self._answers()).to_have_text(list(answers), use_inner_text=True)

    def _answers(self) -> Locator:
        return self.page.locator(".message.assistant :is(.markdown, .plain)")

    def fits(self, width: int) -> None:
        """Waits until the page is no wider than this, in pixels."""
        self.until("width => document.documentElement.scrollWidth <= width", width)

    def copied(self, button: Locator) -> str:
        """What a button puts on the clipboard."""
        self.page.evaluate("() => navigator.clipboard.writeText('')")
        button.click()
        self.until("async () => (await navigator.clipboard.readText()) !== ''")
        text: str = self.page.evaluate("() => navigator.clipboard.readText()")
        return text

    def shoot(self, name: str) -> None:
        """Keeps a picture."""
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png")

    def moved(self) -> list[str]:
        """What moved since the last call, or since the page was opened."""
        self.page.evaluate(_NEXT_FRAME)
        moved: list[str] = self.page.evaluate("() => takeShifts()")
        return moved

    def findings(self) -> list[str]:
        """What axe finds on the page that keeps people out: serious and critical."""
        # Into its own world, where the page's policy is not in force.
        session = self.page.context.new_cdp_session(self.page)
        tree = session.send("Page.getFrameTree")
        world = session.send(
            "Page.createIsolatedWorld", {"frameId": tree["frameTree"]["frame"]["id"]}
        )
        context = {"contextId": world["executionContextId"]}
        session.send("Runtime.evaluate", {"expression": _AXE.read_text(), **context})
        asked = "axe.run().then(found => found.violations)"
        options = {"awaitPromise": True, "returnByValue": True}
        answer = session.send("Runtime.evaluate", {"expression": asked, **options, **context})
        return [
            f"{each['id']}: {node['html'][:200]}"
            for each in answer["result"]["value"]
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.troubles.append(f"console: {message.text}")

    def _on_error(self, error: Error) -> None:
        self.troubles.append(f"script: {error}")

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.troubles.append(f"asked {request.url}")

    def watch(self) -> None:
        """Begins to collect troubles."""
        self.page.on("console", self._on_console)
        self.page.on("pageerror", self._on_error)
        self.page.on("request", self._on_request)


def chromium() -> str:
    """Chromium's path; fails with what to do where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.fail("the page is tested in Chromium: apt-get install chromium", pytrace=False)
    return found


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium without a screen."""
    with sync_playwright() as playwright:
        # With scrollbars, as readers have them: one that appears must move nothing.
        running = playwright.chromium.launch(
            executable_path=chromium(), args=_FLAGS, ignore_default_args=["--hide-scrollbars"]
        )
        yield running
        running.close()


@contextlib.contextmanager
def visiting(
    running: Browser,
    url: str,
    *,
    size: tuple[int, int] = WIDE,
    scheme: str = "light",
    locale: str = "en-US",
) -> Iterator[Visit]:
    """A page with nothing kept from before; fails at its end for what it had trouble with."""
    context = running.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        locale=locale,
        permissions=["clipboard-read", "clipboard-write"],
    )
    context.set_default_timeout(_TIMEOUT_MS)
    context.add_init_script(_WATCH_SHIFTS)
    visit = Visit(context.new_page(), url)
    visit.watch()
    yield visit
    context.close()
    others = [each for each in visit.troubles if not any(words in each for words in visit.provoked)]
    assert others == [], others


def downloaded(path: Path) -> str:
    """A downloaded file's text."""
    return path.read_text(encoding="utf-8")
