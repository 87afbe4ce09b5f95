"""What is watched in the instances of a schema, since the engine does not remember what it read.

{"properties": {"tags": {"type": "array", "uniqueItems": true}}}
->  0: {"properties": {"tags": 1}}    1: {"differ": true}
"""

import json
from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from typing import Any, NamedTuple


class Supply(IntEnum):
    """Which values of an array's items no longer text begins with: they may leave no other.

    NONE: as of strings of any length
    ZERO: as of integers
    SOME: others, which the engine knows
    """

    NONE = 0
    ZERO = 1
    SOME = 2


class Wanted(NamedTuple):
    """How many items of an array are instances of a schema, which is JSON."""

    schema: str
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Watch:
    """What is watched at one place of an instance; below it, by the numbers of other places.

    differ:         whether the items of an array differ
    supply:         which of its items no longer ones begin with
    values:         the texts of all that its items may be, where they are few
    wanted:         items that it contains
    longest:        the most items of an array that contains some; None: any number
    least:          the fewest keys of an object
    most:           the most keys of an object; None: any number
    names:          all keys that it may have, in their order, where they are listed
    required:       the keys that it has to have, where there is a most
    properties:     the places of members
    rest:           that of all other members
    prefix:         the places of the first items
    items:          that of all other items
    """

    differ: bool = False
    supply: Supply = Supply.NONE
    values: tuple[str, ...] = ()
    wanted: tuple[Wanted, ...] = ()
    longest: int | None = None
    least: int = 0
    most: int | None = None
    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    properties: dict[str, int | None] = field(default_factory=dict)
    rest: int | None = None
    prefix: tuple[int | None, ...] = ()
    items: int | None = None

    @property
    def is_watched(self) -> bool:
        """Whether something is watched at this place itself."""
        return self.reads_items or self.least > 0 or self.most is not None

    @property
    def reads_items(self) -> bool:
        """Whether an array's items are looked at as a whole."""
        return self.differ or bool(self.wanted)

    @property
    def of_arrays(self) -> "Watch":
        """What of it concerns an array."""
        return replace(self, least=0, most=None, names=(), required=(), properties={}, rest=None)

    @property
    def of_objects(self) -> "Watch":
        """What of it concerns an object."""
        return Watch(
            least=self.least,
            most=self.most,
            names=self.names,
            required=self.required,
            properties=self.properties,
            rest=self.rest,
        )

    def member(self, key: str) -> int | None:
        """The place of a member."""
        return self.properties.get(key, self.rest)

    def item(self, index: int) -> int | None:
        """The place of an item."""
        return self.prefix[index] if index < len(self.prefix) else self.items


def written(places: tuple[Watch, ...], document: str) -> str:
    """The places as text; "" for none. `document`: the schema, as JSON."""
    if not places:
        return ""
    needed = document if any(place.wanted for place in places) else ""
    return json.dumps({"document": needed, "places": [asdict(place) for place in places]})


def read(text: str) -> tuple[tuple[Watch, ...], str]:
    """The places that `written` wrote, and their document."""
    found = json.loads(text)
    return tuple(map(_place, found["places"])), found["document"]


def _place(fields: dict[str, Any]) -> Watch:
    lists = {key: tuple(fields[key]) for key in ("values", "names", "required", "prefix")}
    wanted = tuple(Wanted(*each) for each in fields["wanted"])
    return Watch(**{**fields, **lists, "wanted": wanted, "supply": Supply(fields["supply"])})
