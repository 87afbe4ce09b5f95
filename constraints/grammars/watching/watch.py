"""What is watched in the instances of a schema, since the engine does not remember what it read.

{"properties": {"tags": {"type": "array", "uniqueItems": true}}}
->  0: {"properties": {"tags": 1}}    1: {"differ": true}
"""

import json
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TypeAlias


class Supply(IntEnum):
    """Which values of an array's items no longer text begins with: they may leave no other.

    NONE: as of strings of any length
    ZERO: as of integers
    SOME: others, which the engine knows
    """

    NONE = 0
    ZERO = 1
    SOME = 2


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched at one place of an instance; below it, by the numbers of other places.

    differ:         whether the items of an array differ
    supply:         which of its items no longer ones begin with
    values:         the texts of all that its items may be, where they are few
    least:          the fewest keys of an object
    most:           the most keys of an object; None: any number
    names:          all keys that it may have, in their order, where they are listed
    required:       those of them that it must have
    properties:     the places of members
    rest:           that of all other members
    prefix:         the places of the first items
    items:          that of all other items
    """

    differ: bool = False
    supply: Supply = Supply.NONE
    values: tuple[str, ...] = ()
    least: int = 0
    most: int | None = None
    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    properties: dict[str, int] = field(default_factory=dict)
    rest: int | None = None
    prefix: tuple[int | None, ...] = ()
    items: int | None = None

    @property
    def is_watched(self) -> bool:
        """Whether something is watched at this place itself."""
        return self.differ or self.least > 0 or self.most is not None

    def member(self, key: str) -> int | None:
        """The place of a member."""
        return self.properties.get(key, self.rest)

    def item(self, index: int) -> int | None:
        """The place of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.items


# By their numbers; the first one is the whole.
Watches: TypeAlias = tuple[Watch, ...]


def written(watches: Watches) -> str:
    """The places as text; "" for none."""
    return json.dumps([asdict(watch) for watch in watches]) if watches else ""


def read(text: str) -> Watches:
    """The places that `written` wrote."""
    found = json.loads(text) if text else []
    return tuple(
        Watch(
            **{
                **each,
                "supply": Supply(each["supply"]),
                **{key: tuple(each[key]) for key in ("values", "names", "required", "prefix")},
            }
        )
        for each in found
    )
