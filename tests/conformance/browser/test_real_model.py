"""The page with the real model of `make serve`: what docs/images/page.png shows."""

import json

import pytest
from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import visiting
from tests.conformance.serving import Served

pytestmark = pytest.mark.nightly


def test_an_answer_and_one_that_fits_a_schema(chrome: Browser, real: Served) -> None:
    with visiting(chrome, real.url, size=(1280, 720)) as visit:
        page = visit.page
        visit.open()
        page.get_by_label("Show tokens").check()
        page.get_by_role("button", name="What is the capital of France?").click()
        visit.ends(1)
        first = page.locator(".token-list").first
        expect(first).to_contain_text("The capital of France is Paris.")
        page.get_by_label("Example").select_option("A person, as JSON")
        expect(page.get_by_role("status")).to_contain_text("Can be satisfied")
        visit.send("John Smith is 42 years old and lives in Berlin.")
        visit.ends(2)
        tokens = page.locator(".token-list").last.locator(".token")
        text = "".join(tokens.all_inner_texts())
        tokens.filter(has_text="42").or_(tokens.filter(has_text="4")).first.hover()
        visit.shoot("page")

    person = json.loads(text[: text.rindex("}") + 1])
    assert person == {"name": "John Smith", "age": 42, "city": "Berlin"}
