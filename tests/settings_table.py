"""Writes what comes of the declared settings: the table of flags in docs/flags.md, and the names
that the chart takes below `config`. `python -m tests.settings_table`."""

import re
from collections.abc import Iterable
from dataclasses import Field
from pathlib import Path
from typing import Any

from launcher import serve_settings
from processes.settings import Group, Kind, default_of, flag_of, variables_of

_ROOT = Path(__file__).resolve().parents[1]
PAGE = _ROOT / "docs" / "flags.md"
CHART = _ROOT / "deploy" / "helm" / "tandem" / "values.schema.json"
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


def schema_with_names(schema: str) -> str:
    """The schema of the chart's values with the settings' names, each with dashes or underscores,
    as they are now."""
    names = "|".join(sorted(each.name.replace("_", "[-_]") for each in serve_settings()))
    place = r'("patternProperties": \{").*?(": true\})'
    return re.sub(place, lambda found: f"{found[1]}^({names})${found[2]}", schema)


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
    CHART.write_text(schema_with_names(CHART.read_text()))
