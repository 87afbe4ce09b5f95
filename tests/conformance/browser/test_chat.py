"""Chats on the page: streamed, stopped, branched, kept, moved; completions."""

import json
import re
import subprocess
from pathlib import Path

from playwright.sync_api import Browser, Route, expect

from tests.conformance.browser.browsing import Visit, visiting
from tests.conformance.serving import ROOT, launched, post, tandem_python

# Run in Tandem's environment. The answer stands behind a prompt of 64 tokens.
_SAVE_THINKER = """
import sys
from pathlib import Path
from tests.scripted_model import CHATML_TOKENS, JSON_CALLS, save_scripted_model

scripts = {64: "<think>\\nAn even sum.\\n</think>\\n\\nFour."}
folder = Path(sys.argv[1])
save_scripted_model(folder, JSON_CALLS, CHATML_TOKENS, scripts, ends=["<|im_end|>"], max_len=256)
"""


def set_parameters(visit: Visit, **typed: str) -> None:
    page = visit.page
    page.get_by_text("Parameters", exact=True).click()
    for label, text in typed.items():
        page.get_by_label(label.replace("_", " ").capitalize(), exact=True).fill(text)


def test_an_answer_is_streamed_and_says_how_it_ended(visit: Visit) -> None:
    visit.open()
    set_parameters(visit, Temperature="0")
    visit.send("What is the capital of France?")
    visit.ends(1)

    visit.shows(
        "I do not know the capital of France. I only know a small invented world: its towns, "
        "people and animals."
    )
    expect(visit.page.locator(".message.assistant footer .hint")).to_contain_text(
        "stop · 29 tokens"
    )
    visit.shoot("chat")


def test_a_prompt_of_the_models_card_is_asked_by_its_button(visit: Visit) -> None:
    visit.open()
    set_parameters(visit, Temperature="0")
    prompts = visit.page.get_by_label("To begin with").get_by_role("button")
    expect(prompts).to_have_count(4)
    prompts.filter(has_text="Pick the odd word out").click()
    visit.ends(1)

    expect(visit.page.locator(".message.assistant .markdown")).to_have_text(
        re.compile(r"So the odd one is shoe\.$"), use_inner_text=True
    )
    expect(visit.page.locator(".message.user")).to_contain_text("Pick the odd word out")
    expect(prompts).to_have_count(0)


def test_a_thought_is_folded_and_opens_by_keyboard(chrome: Browser, tmp_path: Path) -> None:
    subprocess.run([tandem_python(), "-c", _SAVE_THINKER, tmp_path], cwd=ROOT, check=True)
    with launched(model=tmp_path) as served, visiting(chrome, served.url) as visit:
        page = visit.page
        asked = {"messages": [{"role": "user", "content": ""}]}
        num_tokens = len(post(f"{served.url}/chat_tokenize", asked)["tokenize_response"])
        visit.open()
        visit.send("?" * (64 - num_tokens))
        visit.ends(1)
        thought = page.locator(".thought .plain")
        summary = page.locator(".thought summary")
        expect(summary).to_have_text(re.compile(r"Thought for \d+\.\d s, \d+ tokens"))
        expect(thought).to_be_hidden()
        expect(page.locator(".message.assistant .markdown")).to_have_text("Four.")
        summary.press("Enter")

        expect(thought).to_have_text("An even sum.")
        expect(thought).to_be_visible()
        assert visit.findings() == []
        visit.shoot("thought")
        page.reload()
        expect(summary).to_contain_text("Thought for")


def test_a_long_answer_grows_and_is_stopped(slow: Visit) -> None:
    slow.open()
    set_parameters(slow, Max_tokens="400")
    slow.page.get_by_label("Ignore the end token").check()
    slow.send("Tell me a story.")
    text = slow.page.locator(".message.assistant .markdown")
    for _ in range(3):
        expect(text).not_to_have_text(text.inner_text(), use_inner_text=True)
    slow.page.get_by_role("button", name="Stop").click()

    expect(slow.page.locator(".message.assistant footer .hint")).to_have_text("stopped")
    expect(slow.page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_a_regenerated_answer_is_a_branch_beside_the_first(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="1.5", Max_tokens="30")
    visit.send("Who lives in the town?")
    visit.ends(1)
    (first,) = visit.answers()
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    visit.ends(1)
    (second,) = visit.answers()
    page.get_by_role("button", name="Branch before").click()

    visit.shows(first)
    page.get_by_role("button", name="Branch behind").click()
    visit.shows(second)


def test_an_edited_message_begins_a_branch_with_its_own_answer(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="0")
    visit.send("Hello")
    visit.ends(1)
    visit.send("What is the capital of France?")
    visit.ends(2)
    page.locator(".message.user").last.get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("What is the capital of Spain?")
    page.get_by_role("button", name="Send as a new branch").click()
    expect(page.locator(".message.user").last).to_contain_text("Spain")
    visit.ends(2)

    answer = page.locator(".message.assistant .markdown").last
    expect(answer).to_contain_text("capital of Spain")
    page.get_by_role("button", name="Branch before").click()
    expect(answer).to_contain_text("capital of France")
    visit.shoot("branches")


def test_the_same_seed_gives_the_same_answer_and_parameters_are_kept(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="1.5", Seed="7", Max_tokens="20")
    visit.send("Tell me of the sea.")
    visit.ends(1)
    page.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    visit.ends(1)
    again = visit.answers()
    page.reload()

    visit.shows(*again)
    page.get_by_text("Parameters", exact=True).click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("7")
    page.get_by_role("button", name="Branch before").click()
    expect(page.locator(".branches")).to_contain_text("1 / 2")
    visit.shows(*again)


def test_what_breaks_a_rule_is_shown_as_the_server_says_it(visit: Visit) -> None:
    page = visit.page
    visit.provoked.append("status of 4")
    visit.open()
    set_parameters(visit, Temperature="-1")
    expect(page.locator("#note-temperature")).to_have_text("must be at least 0")
    visit.send("Hi")

    expect(page.get_by_role("alert")).to_contain_text("`temperature`")
    page.get_by_label("Temperature", exact=True).fill("")
    page.get_by_label("Language").select_option("Regular expression")
    page.get_by_role("textbox", name="Constraint").fill("a[b")
    visit.send("Hi")
    place = page.get_by_role("alert").filter(has_text="never closed")
    expect(place).to_be_visible()
    assert place.inner_text().splitlines()[-2:] == ["  a[b", "   ^^"]


def test_a_system_prompt_reaches_the_model(visit: Visit) -> None:
    page = visit.page
    asked: list[dict[str, object]] = []
    page.on(
        "request",
        lambda request: (
            asked.append(request.post_data_json or {}) if "chat" in request.url else None
        ),
    )
    visit.open()
    page.get_by_text("System prompt", exact=True).click()
    page.get_by_role("textbox", name="System prompt").fill("Be brief.")
    visit.send("Hello")
    visit.ends(1)

    messages = asked[-1]["messages"]
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]


def test_chats_are_kept_exported_imported_and_deleted(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.open()
    visit.send("Hello")
    visit.ends(1)
    before = visit.answers()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    file = tmp_path / "chat.json"
    download.value.save_as(file)
    page.get_by_role("button", name="New chat").first.click()
    visit.shows()
    page.reload()
    expect(page.locator(".chat-list li")).to_have_count(2)
    page.get_by_role("button", name="Delete Hello").click()
    expect(page.locator(".chat-list li")).to_have_count(1)
    page.get_by_label("Chat to import").set_input_files(file)

    visit.shows(*before)
    assert json.loads(file.read_text())["title"] == "Hello"
    broken = tmp_path / "broken.json"
    broken.write_text('{"title": 1}')
    page.get_by_label("Chat to import").set_input_files(broken)
    expect(page.get_by_role("alert")).to_contain_text("`title` and `system` must be texts")


def test_a_text_is_completed_and_gone_on_with(visit: Visit) -> None:
    page = visit.page
    visit.open("#completion")
    set_parameters(visit, Temperature="0", Max_tokens="12")
    page.get_by_label("Text", exact=True).fill("The weather in winter")
    page.get_by_role("button", name="Complete").click()
    expect(page.get_by_role("button", name="Go on from here")).to_be_enabled()
    page.get_by_role("button", name="Go on from here").click()

    expect(page.get_by_label("Text", exact=True)).to_have_value(
        "The weather in winter was cold that day. Snow covered the roofs, and"
    )
    visit.shoot("completion")


def test_a_server_that_is_gone_is_said_and_asked_again(visit: Visit) -> None:
    page = visit.page
    visit.open()

    def cut(route: Route) -> None:
        route.abort()

    visit.provoked.append("net::ERR_FAILED")
    page.route("**/v1/**", cut)
    visit.send("Hello")
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
    page.unroute("**/v1/**")
    page.get_by_role("button", name="Regenerate").click()
    visit.ends(1)

    expect(page.locator(".message.assistant .markdown")).to_have_text(re.compile(r"\w"))
