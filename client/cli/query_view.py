"""How a query looks: its prompt with the holes coloured, while it fills in and when it is done.

It knows rich and the words of results; no model, no event loop.
"""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from client.calls import Constraint
from client.cli.terminal import harmless
from client.query import Choice, Result, Span, State
from client.query.conditions.rename_subject import rename_subject

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red")
_MAX_CONSTRAINT_LEN = 300
_BAR_LEN = 20
# Lines that the view leaves free, so that it never scrolls.
_NUM_SPARE_LINES = 2


class Palette:
    """A colour for each hole, in the order in which they come. Owner of that order."""

    def __init__(self) -> None:
        self._names: list[str] = []

    def style(self, hole: str) -> str:
        if hole not in self._names:
            self._names.append(hole)
        return _COLOURS[self._names.index(hole) % len(_COLOURS)]

    def coloured(self, prompt: str, spans: Sequence[Span], current: str | None = None) -> Text:
        """A prompt with its holes; the last one called `current` is where it grows."""
        text = Text()
        end = 0
        for span in spans:
            text.append(harmless(prompt[end : span.start]))
            style = self.style(span.hole)
            text.append(harmless(prompt[span.start : span.end]), style=f"bold {style}")
            end = span.end
            if current == span.hole and span is spans[-1]:
                text.append("\u2588", style=style)
        text.append(harmless(prompt[end:]))
        return text


class LiveView:
    """All traces of a query under way, as much of their ends as the screen holds."""

    def __init__(self, palette: Palette) -> None:
        self._palette = palette
        self._states: dict[int, State] = {}
        self._notice = ""

    def show(self, state: State) -> None:
        """A trace's newest state."""
        self._states[state.trace] = state
        self._notice = ""

    def show_notice(self, notice: str) -> None:
        """A notice of the server, shown until a trace has a new state."""
        self._notice = notice

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        states = [self._states[index] for index in sorted(self._states)]
        num_lines = max(options.size.height - _NUM_SPARE_LINES, 4)
        for index, state in enumerate(states):
            share = max(num_lines // len(states), 2)
            if len(states) > 1:
                yield Text(f"--- {index + 1} of {len(states)} ---", style="dim")
                share = max(share - 1, 2)
            yield from self._trace(state, console, options.max_width, share)
        if self._notice:
            yield Text(harmless(self._notice), style="dim")

    def _trace(
        self, state: State, console: Console, width: int, num_lines: int
    ) -> Sequence[RenderableType]:
        below = [] if state.hole is None else [self._asked(state, state.hole)]
        num_below = sum(len(text.wrap(console, width)) for text in below)
        text = self._palette.coloured(state.prompt, state.spans, state.hole)
        return [*text.wrap(console, width)[-max(num_lines - num_below, 1) :], *below]

    def _asked(self, state: State, hole: str) -> Text:
        text = described(state.constraint, state.stop, hole)
        return Text(f"  [{hole}] {text}".rstrip(), style=f"dim {self._palette.style(hole)}")


def described(constraint: Constraint | None, stop: Sequence[str], hole: str) -> str:
    """What a hole is held to, in a line; conditions call it by its name."""
    parts = []
    if constraint is not None:
        value = constraint.value if isinstance(constraint.value, str) else repr(constraint.value)
        if constraint.type == "where":
            value = rename_subject(value, hole)
        shown = harmless(value.replace("\n", " "))
        if len(shown) > _MAX_CONSTRAINT_LEN:
            shown = shown[:_MAX_CONSTRAINT_LEN] + " ..."
        parts.append(f"{constraint.type}: {shown}")
    if stop:
        parts.append(f"stops at {', '.join(map(repr, stop))}")
    return "; ".join(parts)


def finished(result: Result[object], palette: Palette, *, returns: bool) -> Group:
    """A result in colours, for a terminal."""
    head = palette.coloured(result.prompt, result.spans)
    lines = [Text(line) for line in outcome(result, returns=returns)]
    for line in lines:
        line.plain = harmless(line.plain)
        line.highlight_regex(r"^\w+(?= = )", "bold")
    return Group(head, Text(), *lines)


def outcome(result: Result[object], *, returns: bool) -> list[str]:
    """What is known at the end, line by line: variables, distributions, what was returned."""
    lines = [f"{name} = {value!r}" for name, value in result.variables.items()]
    if returns:
        lines.append(f"returned {result.value!r}")
    for name, choice in result.distributions.items():
        lines += _bars(name, choice)
    return lines


def probabilities(logprobs: Mapping[str, float]) -> dict[str, float]:
    """Log-probabilities by value as probabilities, the most probable first."""
    ranked = sorted(logprobs.items(), key=lambda item: -item[1])
    return {value: math.exp(logprob) for value, logprob in ranked}


def _bars(name: str, choice: Choice) -> list[str]:
    shares = probabilities(choice.plain)
    normalised = probabilities(choice.normalised)
    width = max(len(repr(value)) for value in shares)
    head = f"P({name})"
    head = f"{head:{width + 2}}  {'':{_BAR_LEN}}  plain   by length"
    return [head] + [
        f"  {value!r:{width}}  {'#' * round(_BAR_LEN * share):{_BAR_LEN}}  "
        f"{share:6.4f}  {normalised[value]:6.4f}"
        for value, share in shares.items()
    ]
