"""The list of chats: searched, renamed, deleted and brought back; the keyboard."""

import json
from pathlib import Path

from playwright.sync_api import expect

from tests.conformance.browser.browsing import Visit


def chats(visit: Visit, file: Path, **titles: str) -> None:
    """Imports chats with these titles, each with one message."""
    read = []
    for title, content in titles.items():
        said = {"id": "m", "parent": "root", "role": "user", "content": content}
        messages = {"m": {**said, "end": None, "error": None}}
        read.append({"title": title, "system": "", "messages": messages, "chosen": {"root": "m"}})
    file.write_text(json.dumps(read))
    visit.page.get_by_label("Chat to import").set_input_files(file)


def test_chats_are_found_by_what_was_said_and_renamed(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    rows = page.locator(".chat-list li")
    visit.open()
    chats(visit, tmp_path / "chats.json", Sea="Of ships and whales", Land="Of foxes")
    expect(rows).to_have_count(3)
    # The chat that is shown takes the focus once it is drawn.
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("searchbox", name="Search chats")).to_be_focused()
    page.keyboard.type("WHALES")
    expect(rows).to_have_text(["Sea" + "Of ships and whales" + "✎✕"])
    assert visit.findings() == []
    page.keyboard.type("!")
    expect(page.get_by_text("No chat has that text.")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Rename Land").click()
    page.get_by_label("New title").fill("Forest")
    page.keyboard.press("Enter")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "all.json"
    download.value.save_as(file)

    assert [each["title"] for each in json.loads(file.read_text())] == ["Sea", "Forest", "New chat"]


def test_a_deleted_chat_comes_back_to_its_place(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    visit.open()
    chats(visit, tmp_path / "chats.json", Sea="Of ships", Land="Of foxes", Air="Of birds")
    names = page.locator(".chat-list .name")
    page.get_by_role("button", name="Delete Land").click()
    expect(names).to_have_text(["Sea", "Air", "New chat"])
    page.get_by_role("button", name="Undo").click()
    expect(names).to_have_text(["Sea", "Land", "Air", "New chat"])
    page.keyboard.press("Control+Shift+D")
    expect(names).to_have_text(["Sea", "Air", "New chat"])
    assert visit.findings() == []
    visit.shoot("undo")
    page.reload()
    expect(names).to_have_text(["Sea", "Air", "New chat"])


def test_the_keyboard_goes_between_chats_and_lists_what_it_can(
    visit: Visit, tmp_path: Path
) -> None:
    page = visit.page
    visit.open()
    chats(visit, tmp_path / "chats.json", Sea="Of ships", Land="Of foxes")
    shown = page.locator(".message.user .plain")
    expect(shown).to_have_text("Of ships")
    page.keyboard.press("Alt+ArrowDown")
    expect(shown).to_have_text("Of foxes")
    page.keyboard.press("Control+Shift+E")
    expect(page.get_by_label("Edited message")).to_have_value("Of foxes")
    page.keyboard.press("Control+Shift+O")
    expect(shown).to_have_count(0)
    page.keyboard.press("Control+/")
    listed = page.get_by_role("dialog")
    expect(listed).to_contain_text("search the chats")
    assert visit.findings() == []
    visit.shoot("shortcuts")
    page.keyboard.press("Escape")
    expect(listed).to_be_hidden()
