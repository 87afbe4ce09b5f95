import pytest

from tests.architecture.diagrams import ROOT, SOURCES, drawing_of, mark_of


@pytest.mark.parametrize("name", [source.name for source in SOURCES])
def test_a_drawing_is_that_of_its_text(name: str) -> None:
    source = ROOT / "docs" / "diagrams" / name
    drawn = drawing_of(source).read_text()
    assert drawn.splitlines()[-1] == mark_of(source), "run: make diagrams"


def test_each_drawing_is_shown() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "".join(page.read_text() for page in pages)
    assert SOURCES
    assert all(f"images/{source.stem}.svg" in text for source in SOURCES)
