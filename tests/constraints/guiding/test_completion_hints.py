"""CompletionHints: the first ones at once, the others when a search asks for them."""

from constraints.guiding.completion_hints import CompletionHints


def test_hints_behind_the_first_are_made_once_and_when_they_are_asked_for() -> None:
    calls: list[None] = []

    def more() -> tuple[bytes, ...]:
        calls.append(None)
        return (b"part", b"whole", b"other")

    hints = CompletionHints((b"whole",), more)
    before = hints.first, hints.are_made, len(calls)

    found = hints.all(), hints.all()

    assert before == ((b"whole",), False, 0)
    assert found == 2 * ((b"whole", b"part", b"other"),)
    assert (hints.are_made, len(calls)) == (True, 1)


def test_where_nothing_is_left_to_be_made_all_hints_are_the_first() -> None:
    hints = CompletionHints((b"a", b"b"))
    assert hints.are_made
    assert hints.all() == hints.first == (b"a", b"b")
