"""One browser for all tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.conformance.browser.browsing import Visit, browser, visiting
from tests.conformance.serving import Fake, Served


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    """A Chromium."""
    with browser() as running:
        yield running


@pytest.fixture
def slow(chrome: Browser, fake: Fake) -> Iterator[Visit]:
    """A page of a model that takes its time: an answer of 400 tokens is 40 s under way."""
    fake.order(delay_s=0.1)
    with visiting(chrome, fake.url) as visit:
        yield visit


@pytest.fixture
def visit(chrome: Browser, served: Served) -> Iterator[Visit]:
    """A page of the served model, not opened yet."""
    with visiting(chrome, served.url) as visit:
        yield visit
