"""Pages are in short sentences, and together in fewer words than they once were."""

import re
from pathlib import Path

import pytest

from tests.architecture.test_house import ROOT

PAGES = sorted((ROOT / "docs").glob("*.md"))
MAX_WORDS = 25
MAX_WORDS_OF_ALL = 61_390
# A table, a heading, HTML or a picture is no running text.
_OTHER = ("```", "|", "#", "<", "!")
_ITEM = re.compile(r"^\s*([-*]|\d+\.)\s")
_END = re.compile(r"[.!?:][*)\"]*$")


def sentences(page: str) -> list[tuple[int, list[str]]]:
    """The words of each, and the line in which it begins."""
    found: list[tuple[int, list[str]]] = []
    is_code = is_open = False
    for number, line in enumerate(page.splitlines(), 1):
        is_code ^= line.startswith("```")
        is_text = not (is_code or line.startswith(_OTHER))
        if not is_text or not line.strip() or _ITEM.match(line):
            is_open = False
        for word in _ITEM.sub("", line).split() if is_text else ():
            if not is_open:
                found.append((number, []))
            found[-1][1].append(word)
            is_open = _END.search(word) is None
    return found


def test_a_page_is_read_by_sentences() -> None:
    page = "# Title\n\nOne two. Three\nfour: five\n\n* six\n* seven.\n\n```\ncode\n```\n| a | b |\n"
    read = [(line, " ".join(words)) for line, words in sentences(page)]
    expected = [(3, "One two."), (3, "Three four:"), (4, "five"), (6, "six"), (7, "seven.")]
    assert read == expected


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.name)
def test_a_sentence_is_short(page: Path) -> None:
    long = [
        f"{page.relative_to(ROOT)}:{line}: {len(words)} words: {' '.join(words)}"
        for line, words in sentences(page.read_text())
        if len(words) > MAX_WORDS
    ]
    assert not long, f"More than {MAX_WORDS} words:\n" + "\n".join(long)


def test_pages_have_fewer_words_than_they_once_had() -> None:
    num_words = {page.name: len(page.read_text().split()) for page in PAGES}
    total = sum(num_words.values())
    assert total < MAX_WORDS_OF_ALL, f"{total} words; say a thing once: {num_words}"
