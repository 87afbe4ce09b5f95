"""Answers as Markdown: code with colours, formulas, and nothing that a model could hide in them."""

from playwright.sync_api import Browser, expect

from tests.conformance.browser.browsing import Visit, visiting
from tests.conformance.serving import Served

CODE = 'def double(x):\n    return "<b>" * 2\n'
ANSWER = f"""So $x_1^2$ costs $5 and not \\href{{javascript:alert(1)}}{{y}}:

$$\\frac{{a}}{{b}}$$

1. As code:

   ```html
   <b onclick="alert(1)">x</b>
   ```

```python
{CODE}```
and $\\nonsense$ ends."""


def say(visit: Visit, text: str) -> None:
    """Has the model say exactly this."""
    pattern = "".join(f"\\{char}" if char in "\\[](){}.*+?^$|" else char for char in text)
    visit.page.get_by_label("Language").select_option("Regular expression")
    visit.page.get_by_label("Constraint", exact=True).and_(visit.page.locator("textarea")).fill(
        pattern
    )
    visit.send("Hi")
    visit.ends(1)


def test_code_is_coloured_and_copied_and_formulas_are_set(visit: Visit) -> None:
    page = visit.page
    visit.open()
    say(visit, ANSWER)
    answer = page.locator(".message.assistant .markdown")
    expect(answer.locator("math")).to_have_count(2)
    expect(answer.locator("math mfrac")).to_have_count(1)
    python = answer.locator(".framed").last
    expect(python.locator(".hljs-keyword").first).to_have_text("def")
    expect(python.locator(".head span").first).to_have_text("python")
    expect(answer).to_contain_text("costs $5 and not")
    # What KaTeX does not know stays as it was written.
    expect(answer.locator("code.formula")).to_have_text(["\\nonsense"])

    copied = visit.copied(python.get_by_role("button", name="Copy code"))
    assert copied == CODE.rstrip("\n")
    expect(answer.locator("b, [onclick], [style], a")).to_have_count(0)
    assert visit.findings() == []
    visit.shoot("markdown")


def test_code_and_formulas_stay_within_a_narrow_dark_screen(
    chrome: Browser, served: Served
) -> None:
    with visiting(chrome, served.url, size=(360, 740), scheme="dark") as visit:
        page = visit.page
        visit.open()
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Language").select_option("Regular expression")
        line = "x = 1 \\+ 2 " * 8
        page.get_by_label("Constraint", exact=True).and_(page.locator("textarea")).fill(
            f"```python\n# long\n{line}\n```"
        )
        page.get_by_role("button", name="Close").and_(page.locator(":visible")).click()
        visit.send("Hi")
        visit.ends(1)
        expect(page.locator(".hljs-comment")).to_be_visible()

        assert visit.findings() == []
        visit.fits(360)
        visit.shoot("markdown-narrow-dark")
