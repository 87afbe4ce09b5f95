"""One browser for all tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from tests.conformance.browser.browsing import Visit, browser, visiting
from tests.conformance.serving import Served


@pytest.fixture(scope="session")
def chrome() -> Iterator[Browser]:
    """A Chromium."""
    with browser() as running:
        yield running


@pytest.fixture
def visit(chrome: Browser, served: Served) -> Iterator[Visit]:
    """A page of the served model, not opened yet."""
    with visiting(chrome, served.url) as visit:
        yield visit
