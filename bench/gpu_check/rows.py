"""What the check of a GPU finds: rows of a table, some with a bound that they have to keep."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `wanted`: what it has to reach, or must not exceed; None: it is only told."""

    name: str
    value: float | str
    unit: str = ""
    wanted: float | None = None
    is_most: bool = False  # `wanted` is the most that it may be

    @property
    def is_kept(self) -> bool | None:
        """Whether the bound is kept; None: there is none."""
        if self.wanted is None or isinstance(self.value, str):
            return None
        return self.value <= self.wanted if self.is_most else self.value >= self.wanted


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large the parts of the check are. `is_rehearsal`: tiny, on whatever device there is."""

    device: torch.device
    is_rehearsal: bool

    def __post_init__(self) -> None:
        if self.device.type != "cuda" and not self.is_rehearsal:
            raise ValueError(f"a check of {self.device} can only be rehearsed")


Part = Callable[[Sizes], list[Row]]


def markdown(parts: dict[str, list[Row]]) -> str:
    """A table of all rows."""
    lines = ["| part | what | value | wanted | kept |", "|---|---|---|---|---|"]
    lines += [_line(part, row) for part, rows in parts.items() for row in rows]
    return "\n".join(lines) + "\n"


def _line(part: str, row: Row) -> str:
    value = row.value if isinstance(row.value, str) else f"{row.value:,.4g} {row.unit}".strip()
    wanted = "" if row.wanted is None else f"{'<=' if row.is_most else '>='} {row.wanted:g}"
    kept = {None: "", True: "yes", False: "**no**"}[row.is_kept]
    return f"| {part} | {row.name} | {value} | {wanted} | {kept} |"


def write(folder: Path, parts: dict[str, list[Row]]) -> None:
    """gpu-check.md and gpu-check.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu-check.md").write_text(markdown(parts))
    found = {
        part: [asdict(row) | {"kept": row.is_kept} for row in rows] for part, rows in parts.items()
    }
    (folder / "gpu-check.json").write_text(json.dumps(found, indent=1) + "\n")


def failed(parts: Mapping[str, Sequence[Row]]) -> bool:
    """Whether a bound is not kept."""
    return any(row.is_kept is False for rows in parts.values() for row in rows)
