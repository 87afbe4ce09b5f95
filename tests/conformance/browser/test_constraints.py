"""Tokens and constraints on the page: probabilities, rivals, verdicts while one types, code."""

import re
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from tests.conformance.browser.browsing import Visit

# Its keys are tokens: what is forced of them is spelled as the model spells it, which the page's
# answers, with the probability of each token, do themselves.
PERSON = """{"type": "object", "additionalProperties": false, "required": ["name", "age"],
 "properties": {"name": {"type": "string", "maxLength": 20},
  "age": {"maximum": 120, "type": "integer"}}}"""


def constrain(visit: Visit, language: str, text: str) -> None:
    page = visit.page
    page.get_by_label("Language").select_option(language)
    page.get_by_label("Constraint", exact=True).and_(page.locator("textarea")).fill(text)


def test_tokens_have_a_colour_and_rivals(visit: Visit) -> None:
    page = visit.page
    visit.open()
    page.get_by_label("Show tokens").check()
    visit.send("What is the capital of France?")
    visit.ends(1)
    tokens = page.locator(".token-list .token")
    tokens.nth(3).hover()

    expect(tokens).to_have_count(29)
    expect(tokens.first).to_have_class(re.compile(r"level-[0-4]"))
    expect(page.locator(".rivals tr")).to_have_count(5)
    expect(page.locator(".rivals p")).to_contain_text("%")
    # By keyboard as well.
    tokens.nth(3).focus()
    page.keyboard.press("ArrowRight")
    expect(tokens.nth(4)).to_be_focused()
    visit.shoot("tokens")


def test_tokens_say_what_a_constraint_did(visit: Visit) -> None:
    page = visit.page
    visit.open()
    page.get_by_label("Show tokens").check()
    constrain(visit, "Regular expression", "[0-9]=#[0-9]")
    visit.send("Say a number")
    visit.ends(1)

    expect(page.locator(".token-list .token.forced").nth(1)).to_be_visible()
    expect(page.locator(".token-list .token.steered").first).to_be_visible()
    expect(page.locator(".message.assistant footer .hint")).to_contain_text("constraint satisfied")
    page.locator(".token-list .forced").first.hover()
    expect(page.locator(".rivals p")).to_contain_text("left this token alone")


@pytest.mark.parametrize(
    "example",
    ["A person, as JSON", "A date", "One of three", "A sum", "Three steps", "One short sentence"],
)
def test_every_example_can_be_satisfied_and_is(visit: Visit, example: str) -> None:
    page = visit.page
    visit.open()
    page.get_by_label("Example").select_option(example)
    expect(page.get_by_role("status")).to_contain_text("Can be satisfied")
    page.get_by_text("Parameters", exact=True).click()
    page.get_by_label("Max tokens", exact=True).fill("120")
    visit.send("Please")
    visit.ends(1)

    expect(page.locator(".message.assistant footer .hint")).to_contain_text("constraint satisfied")


def test_a_refusal_names_its_column(visit: Visit) -> None:
    visit.provoked.append("status of 4")
    visit.open()
    constrain(visit, "Regular expression", "[0-9]{2}-[a-z")
    verdict = visit.page.get_by_role("status")

    expect(verdict).to_contain_text("this `[` is never closed")
    expect(verdict).to_contain_text("Line 1, column 10")
    visit.shoot("refused")


def test_what_a_schema_cannot_enforce_has_a_pointer_and_may_be_taken_leniently(
    visit: Visit,
) -> None:
    page = visit.page
    visit.provoked.append("status of 4")
    visit.open()
    constrain(visit, "JSON schema", '{"type": "array", "$dynamicRef": "#a"}')
    verdict = page.get_by_role("status")
    expect(verdict).to_contain_text("/$dynamicRef")
    page.get_by_role("button", name="Take it leniently").click()

    expect(verdict).to_contain_text("Not enforced, but checked at the end: /$dynamicRef")


def test_a_text_is_tried_while_one_types(visit: Visit) -> None:
    page = visit.page
    visit.open()
    constrain(visit, "Regular expression", "[a-z]{3}-[0-9]+")
    page.get_by_label("Try a text").fill("abc-")
    verdict = page.get_by_role("status")

    expect(verdict).to_contain_text("Not finished: a digit may follow.")
    page.get_by_label("Try a text").fill("abc4")
    expect(verdict).to_contain_text("Wrong at character 4, 4; expected:")
    page.get_by_label("Try a text").fill("abc-7")
    expect(verdict).to_contain_text("The tried text satisfies it")
    expect(verdict).to_contain_text("Shortest text found")


@pytest.mark.parametrize("client", ["curl", "openai", "huggingface_hub"])
def test_the_copied_code_gives_the_answer_of_the_page(visit: Visit, client: str) -> None:
    page = visit.page
    visit.open()
    page.get_by_text("Parameters", exact=True).click()
    for label, text in (("Temperature", "0"), ("Top k", "40"), ("Max tokens", "40")):
        page.get_by_label(label, exact=True).fill(text)
    constrain(visit, "JSON schema", PERSON)
    visit.send('Say "it\'s me"')
    visit.ends(1)
    page.get_by_text("As code", exact=True).click()
    page.locator(".snippet select").select_option(client)
    code = visit.copied(page.locator(".snippet").get_by_role("button", name="Copy"))
    command = ["bash", "-c", code] if client == "curl" else [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    (answer,) = visit.answers()
    assert answer in (printed.replace('\\"', '"') if client == "curl" else printed)
