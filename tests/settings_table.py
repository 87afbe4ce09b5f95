"""Writes the table of flags in docs/flags.md: `python -m tests.settings_table`."""

from collections.abc import Iterable
from dataclasses import Field
from pathlib import Path
from typing import Any

from launcher import serve_settings
from processes.settings import Group, Kind, default_of, flag_of, variables_of

PAGE = Path(__file__).resolve().parents[1] / "docs" / "flags.md"
_BEGIN, _END = "<!-- settings: generated -->\n", "<!-- settings: end -->\n"


def table_of(settings: Iterable[Field[Any]]) -> str:
    """The settings that --help lists as tables in Markdown, one for each group."""
    listed = [
        each
        for each in settings
        if each.metadata["help"] and each.metadata["kind"] is not Kind.ARGUMENT
    ]
    lines: list[str] = []
    for group in Group:
        members = [each for each in listed if each.metadata["group"] is group]
        if members:
            lines += [f"**{group}**", "", "| flag | variable | default | |", "|---|---|---|---|"]
            lines += [*map(_row, members), ""]
    return "\n".join(lines)


def _row(each: Field[Any]) -> str:
    names = [flag_of(name) for name in (each.name, *each.metadata["aliases"])]
    flags = ", ".join(f"`{flag}`" for flag in names)
    variables = ", ".join(f"`{variable}`" for variable in variables_of(each))
    default = f"`{default_of(each)}`" if default_of(each) else ""
    return f"| {flags} | {variables} | {default} | {each.metadata['help'].replace('|', '&#124;')} |"


def page_with_table(page: str) -> str:
    """The page with the tables between the marks as they are now."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}{table_of(serve_settings())}{_END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
