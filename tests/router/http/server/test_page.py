"""The files of the pages for people: who gets them, and under which policy."""

import gzip
import re

import pytest

from router.http.server.page import BUNDLE
from tests.fakes import FakeShard
from tests.router.http.harness import housing

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
# What a browser may download for the page at / before it shows it, and for both pages with all that
# they load later.
MAX_PAGE_BYTES = 110_000
MAX_BUNDLE_BYTES = 250_000
PAGE_ASSETS = re.compile(r'(?:src|href)="\./(assets/[^"]+)"')


async def test_browsers_get_the_page_and_probes_an_empty_answer() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        page = await client.get("/", headers=BROWSER)
        probe = await client.get("/")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>Tandem</title>" in page.text
    assert (probe.status_code, probe.content) == (200, b"")


async def test_a_server_that_is_not_ready_still_has_a_page() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        await house.rig.batcher.drain(1.0)
        page = await client.get("/", headers=BROWSER)
        probe = await client.get("/")

    assert (page.status_code, probe.status_code) == (200, 503)


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_takes_nothing_from_elsewhere_and_is_framed_by_nobody(path: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        page = await client.get(path, headers=BROWSER)

    policy = dict(
        part.split(" ", 1) for part in page.headers["content-security-policy"].split("; ")
    )
    assert policy["default-src"] == "'none'"
    assert {policy[f"{kind}-src"] for kind in ("script", "style", "connect")} == {"'self'"}
    assert policy["frame-ancestors"] == "'none'"
    assert "http" not in page.text.replace("<!doctype html>", "")
    assert page.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_every_file_that_a_page_names_is_served(path: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        page = await client.get(path, headers=BROWSER)
        names = PAGE_ASSETS.findall(page.text)
        answers = [await client.get(f"/{name}") for name in names]

    assert len(names) >= 2
    for name, answer in zip(names, answers, strict=True):
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        assert answer.headers["content-type"] == f"{kind}; charset=utf-8"
        assert answer.content == (BUNDLE / name).read_bytes()
        assert answer.headers["content-encoding"] == "gzip"


async def test_a_file_that_the_browser_has_is_not_sent_again() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        first = await client.get("/assets/index.js")
        again = await client.get(
            "/assets/index.js", headers={"if-none-match": first.headers["etag"]}
        )

    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "../index.html", "..%2findex.html", "index.html"])
async def test_nothing_but_the_files_of_the_bundle_is_served(name: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        answer = await client.get(f"/assets/{name}")

    assert answer.status_code == 404


def test_both_pages_are_small_together() -> None:
    files = [path for path in BUNDLE.rglob("*") if path.suffix in (".html", ".js", ".css")]

    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_BUNDLE_BYTES


def test_the_page_is_there_with_little() -> None:
    page = (BUNDLE / "index.html").read_text()
    files = [BUNDLE / name for name in PAGE_ASSETS.findall(page)]
    compressed = [len(gzip.compress(path.read_bytes())) for path in [BUNDLE / "index.html", *files]]

    assert sum(compressed) < MAX_PAGE_BYTES
