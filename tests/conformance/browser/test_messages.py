"""Messages: files with them; an answer that was cut goes on; one that was deleted comes back."""

from pathlib import Path

from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import Visit, visiting
from tests.conformance.browser.test_chat import set_parameters
from tests.conformance.browser.test_tools import asked
from tests.conformance.images import png
from tests.conformance.serving import Served

ANSWER = (
    "I do not know the capital of France. I only know a small invented world: its towns, "
    "people and animals."
)

_DROP_AND_PASTE = """() => {
    const dropped = new DataTransfer();
    const options = { bubbles: true, cancelable: true };
    dropped.items.add(new File(["b"], "b.txt"));
    for (const type of ["dragover", "drop"]) {
        document.body.dispatchEvent(new DragEvent(type, { dataTransfer: dropped, ...options }));
    }
    const pasted = new DataTransfer();
    pasted.setData("text/plain", "long ".repeat(1001));
    const field = document.querySelector("[aria-label=Message]");
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: pasted, ...options }));
}"""


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

    visit.shows(ANSWER)
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
    visit.shows(*said[:1])
    expect(page.locator(".undo")).to_contain_text("2 messages")
    page.get_by_role("button", name="Undo").click()

    visit.shows(*said)


def test_an_answer_that_was_edited_goes_on(visit: Visit) -> None:
    page = visit.page
    visit.open()
    set_parameters(visit, Temperature="0")
    visit.send("What is the capital of France?")
    visit.ends(1)
    page.locator(".message.assistant").get_by_role("button", name="Edit").click()
    page.get_by_label("Edited message").fill("I do not know the capital")
    page.get_by_role("button", name="Keep as a new branch").click()
    expect(page.locator(".branches")).to_contain_text("2 / 2")
    page.get_by_role("button", name="Continue").click()
    page.get_by_text("stop ·").wait_for()

    visit.shows(ANSWER)


def test_text_files_are_chosen_dropped_and_pasted(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    bodies = asked(visit)
    visit.open()
    file = tmp_path / "a.py"
    file.write_text("x = 1\n")
    picture = tmp_path / "c.png"
    picture.write_bytes(b"\x89PNG\xff")
    page.get_by_label("Files", exact=True).set_input_files([file, picture])
    expect(page.get_by_role("alert")).to_have_text("c.png: this model reads text alone")
    page.evaluate(_DROP_AND_PASTE)
    listed = page.get_by_role("list", name="Attached files").get_by_role("listitem")
    expect(listed).to_have_count(3)
    assert visit.findings() == []
    visit.shoot("files")
    page.get_by_role("button", name="Leave out pasted.txt").click()
    visit.send("What is this?")
    visit.ends(1)

    assert bodies[0]["messages"] == [
        {
            "role": "user",
            "content": "What is this?\n\na.py:\n```\nx = 1\n```\n\nb.txt:\n```\nb\n```",
        }
    ]
    expect(listed).to_have_count(0)
    page.reload()
    page.locator(".sent-file summary").first.click()
    expect(page.locator(".sent-file pre").first).to_have_text("x = 1\n")
    assert visit.findings() == []
    visit.shoot("files-sent")


_DROP_IMAGE = """(bytes) => {
    const dropped = new DataTransfer();
    dropped.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
    const options = { bubbles: true, cancelable: true, dataTransfer: dropped };
    for (const type of ["dragover", "drop"]) {
        document.body.dispatchEvent(new DragEvent(type, options));
    }
}"""


def test_images_are_chosen_and_dropped_where_the_model_sees(
    chrome: Browser, seeing: Served, tmp_path: Path
) -> None:
    file = tmp_path / "red.png"
    file.write_bytes(png(255))
    with visiting(chrome, seeing.url) as visit:
        page = visit.page
        bodies = asked(visit)
        visit.open()
        set_parameters(visit, Max_tokens="4")
        page.get_by_label("Files", exact=True).set_input_files(file)
        page.evaluate(_DROP_IMAGE, list(png(20)))
        listed = page.get_by_role("list", name="Attached files").get_by_role("listitem")
        expect(listed).to_have_count(2)
        assert visit.findings() == []
        visit.send("What is this?")
        visit.ends(1)
        page.reload()
        expect(page.get_by_role("img", name="red.png")).to_be_visible()
        expect(page.get_by_role("img", name="dropped.png")).to_have_js_property("naturalWidth", 40)
        assert visit.findings() == []

    kinds = [part["type"] for part in bodies[0]["messages"][0]["content"]]
    assert kinds == ["image_url", "image_url", "text"]
