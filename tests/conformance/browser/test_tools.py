"""Tools on the page: written, called, answered by hand, kept."""

import json
from pathlib import Path
from typing import Any

from playwright.sync_api import Request, Route, expect

from tests.conformance.browser.browsing import Visit
from tests.conformance.browser.test_chat import set_parameters

QUESTION = "What is the weather in Paris?"


def call(name: str, city: str) -> dict[str, str]:
    return {"id": f"call_{city}", "name": name, "arguments": json.dumps({"city": city})}


def asked(visit: Visit) -> list[dict[str, Any]]:
    """The bodies of the requests for answers, from now on."""
    bodies: list[dict[str, Any]] = []

    def take(request: Request) -> None:
        if request.url.endswith("/v1/chat/completions"):
            bodies.append(request.post_data_json)

    visit.page.on("request", take)
    return bodies


def test_a_call_waits_for_a_result_and_the_chat_goes_on(visit: Visit) -> None:
    page = visit.page
    bodies = asked(visit)
    visit.open()
    set_parameters(visit, Temperature="0")
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Take an example").click()
    expect(page.get_by_label("Whether it calls")).to_have_value("required")
    page.get_by_label("Whether it calls").select_option("get_weather")
    visit.send(QUESTION)
    visit.ends(1)
    shown = page.get_by_role("region", name="Call of get_weather").locator("pre")
    shown.wait_for()
    arguments = json.loads(shown.inner_text())

    assert bodies[0]["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert set(arguments) == {"city", "unit"}
    assert shown.inner_text() == json.dumps(arguments, indent=2, ensure_ascii=False)
    page.reload()
    expect(shown).to_be_visible()
    assert visit.findings() == []
    visit.shoot("tool-call")
    page.get_by_label("Result of get_weather").fill("It is sunny.")
    visit.moved()
    page.get_by_label("Result of get_weather").press("Enter")
    visit.ends(2)
    assert visit.moved() == []
    # The grammar of tools is none of the reader's constraints.
    expect(page.locator(".message.assistant footer").last).not_to_contain_text("constraint")
    (made,) = bodies[1]["messages"][1]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == arguments
    assert bodies[1]["messages"][1]["content"] is None
    assert bodies[1]["messages"][2] == {
        "role": "tool",
        "content": "It is sunny.",
        "tool_call_id": made["id"],
    }
    assert "tool_choice" not in bodies[1]
    answers = visit.answers()
    page.locator(".message.tool").get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Edited message")).to_be_focused()
    page.get_by_label("Edited message").fill("It rains.")
    page.get_by_role("button", name="Send as a new branch").click()
    expect(page.locator(".message.tool .branches")).to_contain_text("2 / 2")
    visit.ends(2)
    assert bodies[2]["messages"][2]["content"] == "It rains."
    page.get_by_role("button", name="Branch before").click()

    visit.shows(*answers)
    expect(page.locator(".message.tool")).to_contain_text("It is sunny.")
    visit.shoot("tool-result")


def test_each_of_several_calls_gets_a_result_or_an_error(visit: Visit, tmp_path: Path) -> None:
    page = visit.page
    bodies = asked(visit)
    calls = [call("get_weather", "Paris"), call("get_time", "Rome")]
    common = {"end": "tool_calls", "error": None}
    question = {"id": "q", "parent": "root", "role": "user", "content": QUESTION, **common}
    answer = {"id": "a", "parent": "q", "role": "assistant", "content": "", "calls": calls}
    messages = {"q": question, "a": {**answer, **common}}
    chat = {"title": "Two", "system": "", "messages": messages, "chosen": {"root": "q", "q": "a"}}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(chat))
    visit.open()
    page.get_by_label("Chat to import").set_input_files(file)
    page.get_by_label("Result of get_weather").fill("It is sunny.")
    page.get_by_label("Error", exact=True).last.check()
    page.get_by_role("button", name="Send the results").click()
    visit.ends(2)

    assert bodies[0]["messages"][2:] == [
        {"role": "tool", "content": "It is sunny.", "tool_call_id": "call_Paris"},
        {"role": "tool", "content": "Error: the call failed", "tool_call_id": "call_Rome"},
    ]
    expect(page.get_by_label("Error of get_time", exact=True)).to_be_visible()


def test_wrong_tools_are_told_with_their_place_and_not_sent(visit: Visit) -> None:
    page = visit.page
    bodies = asked(visit)
    visit.open()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_label("Tools, as JSON").fill('[\n  {"type": "function" "function": {}}\n]')
    said = page.locator("#tools-said")
    expect(said).to_contain_text("comma expected")
    expect(said).to_contain_text("Line 2, column 23")
    visit.send(QUESTION)

    expect(page.locator(".message.assistant")).to_contain_text("line 2, column 23: not JSON")
    assert bodies == []
    page.get_by_role("button", name="No tools").click()
    page.get_by_role("button", name="Take an example").click()
    page.get_by_label("Example").select_option("A date")
    expect(page.locator(".chip.wrong")).to_have_text("✗ Tools get_weather✕")
    page.get_by_role("button", name="Turn the constraint off").click()
    page.get_by_role("button", name="No tools").click()
    page.get_by_role("button", name="Regenerate").click()
    visit.ends(1)
    assert "tools" not in bodies[0]


def test_a_model_that_cannot_call_says_why(visit: Visit) -> None:
    page = visit.page
    bodies = asked(visit)

    def tell(route: Route) -> None:
        info = route.fetch().json()
        calls = {**info["calls"], "form": None, "reason": "its calls cannot be read back"}
        route.fulfill(json={**info, "calls": calls})

    page.route("**/info", tell)
    visit.open()
    page.get_by_text("Tools", exact=True).click()
    page.get_by_role("button", name="Take an example").click()
    expect(page.get_by_label("Tools", exact=True)).to_contain_text("its calls cannot be read back")
    visit.send(QUESTION)
    visit.ends(1)

    assert "tools" not in bodies[0]
