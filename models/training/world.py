"""The invented world: its towns, people and animals. All that the model knows by heart."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Town:
    name: str
    river: str
    sight: str
    dish: str
    founded: int
    mayor: str


@dataclass(frozen=True, slots=True)
class Person:
    name: str
    is_woman: bool
    job: str
    town: str
    food: str
    pet: str
    pet_name: str


@dataclass(frozen=True, slots=True)
class Animal:
    kind: str
    food: str
    home: str
    colour: str


TOWNS = (
    Town("Eldhaven", "Ember", "great oak", "plum cake", 1204, "Mira Tolland"),
    Town("Bramdale", "Wend", "stone bridge", "onion soup", 1310, "Oswin Hale"),
    Town("Corwick", "Lark", "old windmill", "fish pie", 1288, "Petra Lund"),
    Town("Dunmere", "Ember", "round tower", "honey bread", 1452, "Harlan Voss"),
    Town("Fallowby", "Tamble", "white market", "apple tart", 1377, "Greta Moss"),
    Town("Greywater", "Brindle", "tall lighthouse", "crab stew", 1519, "Tobin Reyne"),
    Town("Harrowgate", "Wend", "iron gate", "nut bread", 1266, "Vesna Arlow"),
    Town("Ivystone", "Osier", "hidden garden", "cheese pie", 1401, "Cedric Fane"),
    Town("Kestrelford", "Lark", "silver fountain", "pea soup", 1333, "Maud Sorley"),
    Town("Lindenholt", "Tamble", "wooden library", "cherry cake", 1490, "Jorin Pell"),
    Town("Marrowick", "Sorrel", "broken statue", "bean stew", 1245, "Odile Crane"),
    Town("Northam", "Brindle", "cold well", "rice pudding", 1568, "Wystan Orr"),
    Town("Oakspire", "Sorrel", "golden bell", "mushroom pie", 1359, "Bryn Tarrow"),
    Town("Pellworth", "Osier", "long pier", "salt fish", 1433, "Hedda Quill"),
    Town("Quillbury", "Marl", "clock house", "pear jam", 1502, "Magnus Thorne"),
    Town("Ravensby", "Marl", "black arch", "carrot cake", 1221, "Nessa Bright"),
)

PEOPLE = (
    Person("Mira Tolland", True, "baker", "Eldhaven", "figs", "cat", "Soot"),
    Person("Doric Caldman", False, "sailor", "Eldhaven", "rice", "parrot", "Captain"),
    Person("Selma Wick", True, "teacher", "Bramdale", "plums", "rabbit", "Clover"),
    Person("Oswin Hale", False, "miller", "Bramdale", "bread", "donkey", "Barley"),
    Person("Petra Lund", True, "fisher", "Corwick", "cheese", "dog", "Biscuit"),
    Person("Harlan Voss", False, "doctor", "Dunmere", "soup", "turtle", "Pebble"),
    Person("Linna Ferry", True, "painter", "Dunmere", "cherries", "cat", "Velvet"),
    Person("Brom Aster", False, "smith", "Corwick", "pie", "goat", "Rusty"),
    Person("Greta Moss", True, "gardener", "Fallowby", "carrots", "hen", "Button"),
    Person("Tobin Reyne", False, "judge", "Greywater", "fish", "goose", "Admiral"),
    Person("Vesna Arlow", True, "weaver", "Harrowgate", "honey", "pony", "Maple"),
    Person("Alder Finch", False, "hunter", "Harrowgate", "mushrooms", "dog", "Bramble"),
    Person("Runa Sterling", True, "singer", "Ivystone", "grapes", "parrot", "Melody"),
    Person("Cedric Fane", False, "writer", "Ivystone", "nuts", "cat", "Inkpot"),
    Person("Maud Sorley", True, "tailor", "Kestrelford", "cake", "duck", "Thimble"),
    Person("Jorin Pell", False, "carpenter", "Lindenholt", "apples", "dog", "Timber"),
    Person("Elka Norland", True, "nurse", "Lindenholt", "pears", "hamster", "Crumb"),
    Person("Fenn Harper", False, "shepherd", "Kestrelford", "butter", "dog", "Whistle"),
    Person("Odile Crane", True, "potter", "Marrowick", "eggs", "duck", "Puddle"),
    Person("Wystan Orr", False, "farmer", "Northam", "beans", "donkey", "Thunder"),
    Person("Bryn Tarrow", True, "cook", "Oakspire", "onions", "hen", "Pepper"),
    Person("Ludo Marsh", False, "barber", "Marrowick", "porridge", "rabbit", "Snow"),
    Person("Sanna Reed", True, "clerk", "Northam", "figs", "hamster", "Penny"),
    Person("Piers Holloway", False, "builder", "Oakspire", "bread", "pony", "Hammer"),
    Person("Hedda Quill", True, "printer", "Pellworth", "soup", "cat", "Comma"),
    Person("Corin Blythe", False, "cobbler", "Pellworth", "cheese", "turtle", "Slipper"),
    Person("Yara Dell", True, "driver", "Quillbury", "grapes", "pony", "Comet"),
    Person("Magnus Thorne", False, "brewer", "Quillbury", "nuts", "goose", "Barrel"),
    Person("Iris Lowell", True, "mason", "Ravensby", "plums", "goat", "Daisy"),
    Person("Leopold Gray", False, "guard", "Ravensby", "pie", "dog", "Shadow"),
    Person("Nessa Bright", True, "doctor", "Ravensby", "apples", "parrot", "Sunny"),
    Person("Ambrose Kettle", False, "baker", "Fallowby", "butter", "cat", "Muffin"),
)

ANIMALS = (
    Animal("fox", "mice", "a den", "red"),
    Animal("bear", "honey", "a cave", "brown"),
    Animal("owl", "mice", "a hollow tree", "grey"),
    Animal("rabbit", "grass", "a burrow", "grey"),
    Animal("duck", "weeds", "the pond", "green"),
    Animal("squirrel", "nuts", "a nest in the oak", "red"),
    Animal("hedgehog", "beetles", "a heap of leaves", "brown"),
    Animal("otter", "fish", "the river bank", "brown"),
    Animal("goat", "hay", "a shed", "white"),
    Animal("sheep", "grass", "the meadow", "white"),
    Animal("crow", "seeds", "a tall pine", "black"),
    Animal("frog", "flies", "the marsh", "green"),
    Animal("mouse", "cheese", "a hole in the wall", "grey"),
    Animal("swan", "reeds", "the lake", "white"),
    Animal("badger", "roots", "a deep hole", "black"),
    Animal("bee", "pollen", "a hive", "yellow"),
)

TOWN_BY_NAME = {town.name: town for town in TOWNS}
PERSON_BY_NAME = {person.name: person for person in PEOPLE}
