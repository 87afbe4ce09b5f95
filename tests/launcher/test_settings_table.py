"""The table of flags in docs/serving.md is that of the declarations."""

from tests.launcher.settings_table import PAGE, page_with_table


def test_the_page_lists_every_setting_as_it_is_declared() -> None:
    page = PAGE.read_text()
    hint = "run: python -m tests.launcher.settings_table"
    assert page == page_with_table(page), hint
    assert "`--max-batch-prefill-tokens`" in page
