"""Names of people and towns, put together from syllables: tens of thousands of them.

A model that has seen a few hundred names learns them by heart and cannot copy a new one. Here a
name is seldom seen twice; the names of the test split never occur in training at all.
"""

from dataclasses import dataclass
from random import Random

from models.training.document import Split
from models.training.holdout import belongs

_FIRST_HEADS = (
    "Al Am An Ar Bel Ber Bri Bro Cal Cas Cor Da Del Do Ed El Em Er Fa Fen Fi Gar Gil Gre Hal Hen "
    "Il Is Ja Jo Ka Kel Ko La Len Lo Mar Mel Mi Mo Na Nel Ni Ol Or Pe Per Ra Ri Ro Sa Sel Si Ta "
    "Ter To Ul Va Ver Vi Wil Ya Ze Zo"
).split()
_MIDDLES = ("", "", "", "a", "e", "i", "o", "an", "er", "il", "or")
_WOMEN_TAILS = "bea cia da della dia fa la lia lina ma mira na nia nora ra ria sa sia ta tina va"
_MEN_TAILS = "ben bert den dan do dric fin go kin lan las mas mo mund nik ric ron sten to ton vin"
_SURNAME_HEADS = (
    "Ash Bar Birch Black Brook Burn Cald Cart Clay Cole Crow Dark Dray East Fair Fern Fleet Fox "
    "Free Gold Grand Green Hart Haw Hazel Hill Hol Iron Kel Lake Lang Lock Long Marl Mead Mill "
    "Moor North Oat Penn Pike Plum Reed Rose Rush Salt Sand Silver Stark Stone Strand Sum Thorn "
    "Tide Tol Under Vale Wain West Whit Wind Winter Wood"
).split()
_SURNAME_TAILS = (
    "acre bank beck berry bourne brand bridge by croft den er field ford gate grave hand hurst "
    "kin land ler ley man mark mont more ner pole ridge sell shaw son stead ster stock ton ward "
    "way well wick win worth yard"
).split()
_TOWN_HEADS = (
    "Ald Apple Ard Bal Barrow Bay Beck Birken Bram Bran Breck Bright Cam Castle Chal Cliff Cold "
    "Copper Crag Dal Deep Dun Elm Ever Fal Far Fen Flint Frost Glen Hather High Holm Hol Ingle "
    "Kin Lam Lark Lin Long Lyn Mal Maple Mar Nether New Nor Old Pem Pine Port Raven Red Sal Sel "
    "Shel Stan Sun Swan Tar Thrush Up Wal War Wester Wil Zen"
).split()
_TOWN_TAILS = (
    "bury by cester cliff combe cott dale dean don fell finster ford gate ham haven hill holme "
    "hurst leigh low mere mouth ness port rick shore stead stow thorpe ton wald water wick wood"
).split()

WORLD_FIRST_NAMES = frozenset(
    "Mira Doric Selma Oswin Petra Harlan Linna Brom Greta Tobin Vesna Alder Runa Cedric Maud "
    "Jorin Elka Fenn Odile Wystan Bryn Ludo Sanna Piers Hedda Corin Yara Magnus Iris Leopold "
    "Nessa Ambrose Pip".split()
)
WORLD_TOWNS = frozenset(
    "Eldhaven Bramdale Corwick Dunmere Fallowby Greywater Harrowgate Ivystone Kestrelford "
    "Lindenholt Marrowick Northam Oakspire Pellworth Quillbury Ravensby".split()
)


@dataclass(frozen=True, slots=True)
class Someone:
    """A person of a text: a first name, a surname and the pronouns that go with them."""

    first: str
    surname: str
    is_woman: bool

    @property
    def full(self) -> str:
        return f"{self.first} {self.surname}"

    @property
    def he(self) -> str:
        return "she" if self.is_woman else "he"

    @property
    def him(self) -> str:
        return "her" if self.is_woman else "him"

    @property
    def his(self) -> str:
        return "her" if self.is_woman else "his"


def draw_first_name(rng: Random, split: Split, is_woman: bool) -> str:
    tails = (_WOMEN_TAILS if is_woman else _MEN_TAILS).split()
    while True:
        name = rng.choice(_FIRST_HEADS) + rng.choice(_MIDDLES) + rng.choice(tails)
        if name not in WORLD_FIRST_NAMES and belongs(split, "name", name):
            return name


def draw_surname(rng: Random, split: Split) -> str:
    while True:
        name = rng.choice(_SURNAME_HEADS) + rng.choice(_SURNAME_TAILS)
        if belongs(split, "name", name):
            return name


def draw_town(rng: Random, split: Split) -> str:
    while True:
        name = rng.choice(_TOWN_HEADS) + rng.choice(_TOWN_TAILS)
        if name not in WORLD_TOWNS and belongs(split, "name", name):
            return name


def draw_someone(rng: Random, split: Split) -> Someone:
    is_woman = rng.random() < 0.5
    return Someone(draw_first_name(rng, split, is_woman), draw_surname(rng, split), is_woman)


def draw_two(rng: Random, split: Split) -> tuple[Someone, Someone]:
    """Two people whose first names and surnames differ."""
    one = draw_someone(rng, split)
    while True:
        other = draw_someone(rng, split)
        if other.first != one.first and other.surname != one.surname:
            return one, other
