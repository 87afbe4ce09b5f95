"""The page with the real model of `make serve`: what docs/images/page.png shows."""

import json

import pytest
from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import visiting
from tests.conformance.serving import Served

pytestmark = pytest.mark.nightly


def test_an_answer_and_one_that_fits_a_schema(chrome: Browser, real: Served) -> None:
    with visiting(chrome, real.url, size=(1280, 800)) as visit:
        page = visit.page
        visit.open()
        page.get_by_label("Show tokens").check()
        page.get_by_role("button", name="What is the capital of Japan?").click()
        visit.ends(1)
        first = page.locator(".token-list").first
        expect(first).to_contain_text("The capital of Japan is Tokyo.")
        page.get_by_label("Example").select_option("A person, as JSON")
        expect(page.get_by_role("status")).to_contain_text("Can be satisfied")
        visit.send("Maria Lopez is 34 years old and works as a nurse in Lisbon.")
        visit.ends(2)
        tokens = page.locator(".token-list").last.locator(".token")
        # White space at the end of a line is shown.
        text = "".join(tokens.all_inner_texts()).replace("⏎", "")
        tokens.filter(has_text="city").hover()
        expect(page.locator(".rivals p")).to_contain_text("steered")
        visit.shoot("page")

    assert json.loads(text) == {"name": "Maria Lopez", "age": 34, "city": "Lisbon"}
