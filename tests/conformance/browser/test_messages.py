"""Messages: an answer that was cut goes on; one that was deleted comes back."""

from playwright.sync_api import expect

from tests.conformance.browser.browsing import Visit
from tests.conformance.browser.test_chat import set_parameters

ANSWER = (
    "I do not know the capital of France. I only know a small invented world: its towns, "
    "people and animals."
)


def test_an_answer_that_was_cut_goes_on(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="0", Max_tokens="8")
    visit.send("What is the capital of France?")
    visit.ends(1)
    (beginning,) = visit.answers()
    page.get_by_label("Max tokens", exact=True).fill("")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("stop ·").wait_for()

    assert visit.answers() == [ANSWER]
    assert 0 < len(beginning) < len(ANSWER)
    expect(page.get_by_role("button", name="Continue")).to_have_count(0)
    page.get_by_label("Show tokens").check()
    expect(page.locator(".token-list")).to_contain_text(ANSWER)


def test_a_deleted_message_takes_along_what_is_behind_it_and_comes_back(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="0")
    visit.send("Hello")
    visit.ends(1)
    visit.send("What is the capital of France?")
    visit.ends(2)
    said = visit.answers()
    page.locator(".message.user").last.get_by_role("button", name="Delete").click()
    assert visit.answers() == said[:1]
    expect(page.locator(".undo")).to_contain_text("2 messages")
    page.get_by_role("button", name="Undo").click()

    assert visit.answers() == said
