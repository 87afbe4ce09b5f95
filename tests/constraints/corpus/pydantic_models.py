"""Models as people write them; pydantic says what their schemas are (pydantic.jsonl)."""

import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Optional

from annotated_types import Len
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    RootModel,
    TypeAdapter,
    WithJsonSchema,
    computed_field,
    networks,
    types,
)
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
    random: types.UUID4
    four: ipaddress.IPv4Address
    address: networks.IPvAnyAddress
    url: networks.HttpUrl
    path: pathlib.Path


class Blobs(BaseModel):
    plain: bytes
    encoded: types.Base64Bytes
    secret: types.SecretStr


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
    numbers: types.Json[list[int]]


class Documented(BaseModel):
    old: int = Field(deprecated=True)
    title: str = Field(title="T", description="d", examples=["x"])


class Literals(BaseModel):
    value: Literal["a", 1, True, None]


class Slug(BaseModel):
    slug: Annotated[str, Field(pattern="^[a-z]+$", json_schema_extra={"format": "slug"})]


class Page(BaseModel):
    people: list[Person]
    page: types.PositiveInt
    offset: types.NegativeFloat
    total: types.NonNegativeInt


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


class PlainSets(BaseModel):
    tags: set[str]
    numbers: set[int] = set()
    some: types.conset(str, min_length=1, max_length=3)  # type: ignore[valid-type]
    frozen: frozenset[int] = Field(default=frozenset(), max_length=4)


class SetsOfFew(BaseModel):
    days: set[Literal["mon", "tue", "wed"]] = Field(min_length=1)
    flags: set[bool]


class Constrained(BaseModel):
    code: types.constr(pattern=r"^[A-Z]{2}\d{4}$")  # type: ignore[valid-type]
    stars: types.conint(ge=1, le=5)  # type: ignore[valid-type]
    tags: types.conlist(str, min_length=1, max_length=3)  # type: ignore[valid-type]
    even: int = Field(multiple_of=2, gt=0)
    ratio: float = Field(ge=0, lt=1)
    cents: float = Field(multiple_of=0.01)


class Decimals(BaseModel):
    any: decimal.Decimal
    above: decimal.Decimal = Field(gt=0)
    bounded: decimal.Decimal = Field(ge=0, le=100, max_digits=5, decimal_places=2)
    optional: decimal.Decimal | None = None


class MoreTimes(BaseModel):
    past: types.PastDate
    future: types.FutureDatetime
    aware: types.AwareDatetime
    naive: types.NaiveDatetime
    from_2020: datetime.date = Field(ge=datetime.date(2020, 1, 1))


class Lengths(BaseModel):
    model_config = ConfigDict(ser_json_timedelta="float")
    length: datetime.timedelta


class Network(BaseModel):
    network: networks.IPvAnyNetwork
    interface: networks.IPvAnyInterface
    six: ipaddress.IPv6Address
    block: ipaddress.IPv4Network
    url: networks.AnyUrl
    database: networks.PostgresDsn
    cache: networks.RedisDsn | None = None


class MoreIds(BaseModel):
    one: types.UUID1
    five: types.UUID5
    file: types.FilePath
    pattern: re.Pattern[str]
    size: types.ByteSize


class MoreBlobs(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    raw: bytes = Field(max_length=8)
    url: types.Base64UrlStr
    secret: types.SecretBytes


class Password(BaseModel):
    model_config = ConfigDict(regex_engine="python-re")
    login: str = Field(min_length=3, max_length=20, pattern=r"^\w+$")
    password: str = Field(pattern=r"^(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{8,20}$")


class Unions(BaseModel):
    plain: int | str
    of_models: Person | Address
    left_to_right: Annotated[int | float | str, Field(union_mode="left_to_right")]
    list_or_one: list[str] | str | None = None


class Lizard(BaseModel):
    colour: str
    loves_rocks: bool


class Tagged(BaseModel):
    pet: Annotated[
        Annotated[Lizard, types.Tag("lizard")] | Annotated[Dog, types.Tag("dog")],
        types.Discriminator(lambda value: "dog" if "good" in value else "lizard"),
    ]


class Scores(RootModel[dict[str, float]]):
    pass


@dataclasses.dataclass
class Vector:
    x: float
    y: float = 0.0


class WithDataclass(BaseModel):
    at: Vector
    path: list[Vector] = []


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    user_id: int = Field(alias="userId")
    kind: str = Field(validation_alias=AliasChoices("kind", "type"), serialization_alias="type")
    hidden: int = Field(default=0, exclude=True)


class Sequences(BaseModel):
    queue: deque[int] = Field(max_length=3)
    sequence: Sequence[str]
    one: tuple[int]
    none: tuple[()] = ()
    matrix: list[list[float]]
    pairs: list[tuple[str, int]]
    exactly: Annotated[list[int], Len(2, 2)]


class MoreMaps(BaseModel):
    by_number: dict[int, str]
    by_date: dict[datetime.date, float]
    by_id: dict[uuid.UUID, str]
    by_literal: dict[Literal["a", "b"], int]
    one_or_more: dict[str, int] = Field(min_length=1)
    few: dict[str, int] = Field(min_length=2, max_length=3)
    lists: dict[str, list[Address]]


class Department(BaseModel):
    name: str
    staff: list["Employee"] = []


class Employee(BaseModel):
    name: str
    leads: Department | None = None


class Expression(BaseModel):
    op: Literal["add", "mul"]
    args: list["Expression | float"] = Field(min_length=2, max_length=2)


class Whatever(BaseModel):
    value: types.JsonValue
    shape: Annotated[Any, WithJsonSchema({"type": "string", "enum": ["round", "flat"]})]


class Scalars(BaseModel):
    yes: types.StrictBool
    count: types.StrictInt
    ratio: types.FiniteFloat
    always: Literal[True]
    nothing: None
    either: Literal["on", "off"] | None
    answer: Literal[42]


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Invoice(BaseModel):
    """What a language model is asked to read from a page."""

    number: str = Field(description="As printed", pattern=r"^[A-Z]{1,3}-?\d{3,8}$")
    issued: datetime.date
    due: datetime.date | None = None
    currency: Literal["EUR", "USD", "GBP"]
    lines: list[Item] = Field(min_length=1)
    total: decimal.Decimal = Field(ge=0, decimal_places=2)


class Step(BaseModel):
    explanation: str
    output: str


class Reasoning(BaseModel):
    model_config = ConfigDict(extra="forbid")
    steps: list[Step]
    final_answer: str


MODELS: list[type[BaseModel]] = [
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, BaseModel) and each.__module__ == __name__
    if "[" not in each.__name__
]
TYPES: dict[str, Any] = {
    "a union": Cat | Dog,
    "a list": list[Person],
    "set of int": set[int],
    "set of str": set[str],
    "a dataclass": Vector,
    "an enum": Colour,
    "a typed dict": Movie,
    "a named tuple": Point,
    "a date or nothing": datetime.date | None,
}


def schemas() -> dict[str, Any]:
    """The schemas by name, as validated, and as serialized where both differ."""
    found: dict[str, Any] = {}
    types = {model.__name__: TypeAdapter(model) for model in MODELS}
    types |= {name: TypeAdapter(type_) for name, type_ in TYPES.items()}
    for name, type_ in types.items():
        found[f"pydantic/{name}"] = type_.json_schema(mode="validation")
        written = type_.json_schema(mode="serialization")
        if written != found[f"pydantic/{name}"]:
            found[f"pydantic/{name}, written"] = written
    return found
