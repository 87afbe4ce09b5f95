"""Writes what pydantic makes of models, for pydantic.json; run it as a module.

The last ones are as FastAPI has them in its OpenAPI documents: by the same generator, with
references to `#/components/schemas`.
"""

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import sys
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Optional

from pydantic import (
    UUID4,
    Base64Bytes,
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NegativeFloat,
    NonNegativeInt,
    PositiveInt,
    SecretStr,
    StringConstraints,
    TypeAdapter,
    computed_field,
)
from pydantic.json_schema import models_json_schema
from typing_extensions import TypedDict


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Level(enum.IntEnum):
    ONE = 1
    TWO = 2


class Address(BaseModel):
    street: str = Field(min_length=1, max_length=30)
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]


class Person(BaseModel):
    name: str
    age: int = Field(ge=0, le=150)
    email: str | None = None
    address: Address | None = None


class SetsOfEnums(BaseModel):
    colours: set[Colour]
    levels: frozenset[Level] = frozenset()


class Times(BaseModel):
    date: datetime.date
    time: datetime.time
    moment: datetime.datetime
    length: datetime.timedelta


class Numbers(BaseModel):
    price: decimal.Decimal = Field(max_digits=6, decimal_places=2)
    share: float = Field(gt=0, lt=1)
    steps: Annotated[int, Field(multiple_of=5)]


class Ids(BaseModel):
    any_version: uuid.UUID
    random: UUID4
    four: ipaddress.IPv4Address
    address: IPvAnyAddress
    url: HttpUrl
    path: pathlib.Path


class Blobs(BaseModel):
    plain: bytes
    encoded: Base64Bytes
    secret: SecretStr


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    good: bool


class Owner(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]


class Tree(BaseModel):
    value: int
    left: Optional["Tree"] = None
    right: Optional["Tree"] = None


class Point(NamedTuple):
    x: int
    label: str


class Tuples(BaseModel):
    pair: tuple[int, str]
    many: tuple[float, ...]
    point: Point


class Maps(BaseModel):
    by_name: dict[str, int]
    by_colour: dict[Colour, int]
    headers: dict[Annotated[str, Field(pattern="^x-")], bool]


class Extended(BaseModel):
    model_config = ConfigDict(
        extra="allow", json_schema_extra={"example": {"a": 1}, "x-order": 3, "X-Group": "g"}
    )
    slider: int = Field(json_schema_extra={"x-ui": "slider", "_internal": True, "comment": "hi"})


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    value: int


class Options(TypedDict, total=False):
    limit: int
    tags: list[str]


class WithOptions(BaseModel):
    options: Options


class Anything(BaseModel):
    whatever: Any
    more: object = None
    items: list[Any]


class Embedded(BaseModel):
    numbers: Json[list[int]]


class Bounded(BaseModel):
    numbers: Annotated[list[int], Field(min_length=1, max_length=5)]
    colours: list[Colour]


class Documented(BaseModel):
    old: int = Field(deprecated=True)
    title: str = Field(title="T", description="d", examples=["x"])


class Literals(BaseModel):
    value: Literal["a", 1, True, None]


class Slug(BaseModel):
    slug: Annotated[str, Field(pattern="^[a-z]+$", json_schema_extra={"format": "slug"})]


class Card(BaseModel):
    number: Annotated[str, StringConstraints(strip_whitespace=True, to_upper=True, max_length=9)]


class Page(BaseModel):
    people: list[Person]
    page: PositiveInt
    offset: NegativeFloat
    total: NonNegativeInt


class Square(BaseModel):
    width: float

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> float:
        return self.width * self.width


class Status(enum.StrEnum):
    ON = "on"
    OFF = "off"


class Item(BaseModel):
    name: str = Field(max_length=20)
    price: float = Field(gt=0)
    tags: list[str] = []
    status: Status = Status.ON
    parent: int | None = None


class Order(BaseModel):
    items: list[Item] = Field(min_length=1, max_length=3)
    note: str | None = None


MODELS: tuple[type[BaseModel], ...] = (
    *(Person, SetsOfEnums, Times, Numbers, Ids, Blobs, Owner, Tree, Tuples, Maps, Extended, Closed),
    *(WithOptions, Anything, Embedded, Bounded, Documented, Literals, Slug, Card, Page),
)
_COMPONENTS = "#/components/schemas/{model}"


def schemas() -> dict[str, Any]:
    """The schemas by name."""
    found = {f"pydantic/{model.__name__}": model.model_json_schema() for model in MODELS}
    found["pydantic/Square"] = Square.model_json_schema(mode="serialization")
    found["pydantic/Ids, written"] = Ids.model_json_schema(mode="serialization")
    found["pydantic/a union"] = TypeAdapter(Cat | Dog).json_schema()
    found["pydantic/a list"] = TypeAdapter(list[Person]).json_schema()
    found["pydantic/a set"] = TypeAdapter(set[int]).json_schema()
    for name in ("Item", "Order", "Page", "Owner", "SetsOfEnums"):
        kinds = [(model, "validation") for model in (Item, Order, Page, Owner, SetsOfEnums)]
        _, document = models_json_schema(kinds, ref_template=_COMPONENTS)  # type: ignore[arg-type]
        reference = {"$ref": _COMPONENTS.format(model=name)}
        found[f"openapi/{name}"] = {**reference, "components": {"schemas": document["$defs"]}}
    return found


if __name__ == "__main__":
    json.dump(schemas(), sys.stdout, indent=1)
