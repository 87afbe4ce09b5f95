"""Everyday prose: days, weather, friends, places, letters, lists. Coherent by a small state."""

from random import Random

from models.training.document import Split
from models.training.names import draw_someone, draw_town
from models.training.words import COLOURS, FOODS, ITEMS, JOBS, PETS, join_words, with_article

_SEASONS = {
    "spring": ("mild", "The first flowers opened", "the birds sang", "light coat"),
    "summer": ("hot", "The sky was blue all day", "the children swam in the river", "straw hat"),
    "autumn": ("windy", "Yellow leaves lay on the road", "the apples were ripe", "warm scarf"),
    "winter": ("cold", "Snow covered the roofs", "smoke rose from every house", "thick coat"),
}
_LISTS = {
    "take to the sea": "towel sunglasses hat water sandals book ball umbrella",
    "take to school": "pencil book ruler lunch bag paper pen apple",
    "buy at the market": "bread cheese apples onions eggs butter honey carrots",
    "pack for a journey": "map coat shoes blanket knife lamp rope bread",
    "bake a cake": "flour eggs butter sugar milk honey nuts plums",
    "clean the house": "broom bucket soap cloth brush water sponge mop",
}


def weather(rng: Random, split: Split) -> str:
    """A day in a season."""
    season = rng.choice(list(_SEASONS))
    mild, sign, meanwhile, coat = _SEASONS[season]
    who, town = draw_someone(rng, split), draw_town(rng, split)
    opening = rng.choice(
        (
            f"The weather was {mild}. It was {season} in {town}.",
            f"The weather in {town} was {mild} that day.",
            f"It was a {mild} {season} day in {town}.",
            f"Today the weather is {mild}. It is {season}.",
            f"In {season} the weather in {town} is {mild}.",
        )
    )
    closing = rng.choice(
        (
            f"{who.first} put on {who.his} {coat} and went for a walk.",
            f"{who.first} took {who.his} {coat} and went to the market.",
            f"In the evening {who.first} sat at the window and was happy.",
        )
    )
    return f"{opening} {sign}, and {meanwhile}. {closing}"


def friend(rng: Random, split: Split) -> str:
    """`My friend ...`: who somebody is."""
    who, town = draw_someone(rng, split), draw_town(rng, split)
    relation = "friend friend neighbour sister brother teacher".split()[rng.randrange(6)]
    if relation in ("sister", "brother"):
        relation = "sister" if who.is_woman else "brother"
    job, pet, foods = rng.choice(JOBS), rng.choice(PETS), rng.sample(FOODS, 2)
    told = [
        f"{who.he.title()} works as {with_article(job)}.",
        f"{who.he.title()} has {with_article(pet)} and likes {join_words(foods)}.",
        f"Every morning {who.he} feeds the {pet} and goes to work.",
        f"On Sunday we eat {foods[0]} together.",
        f"I like {who.him} because {who.he} is {rng.choice(('kind', 'funny', 'honest'))}.",
    ]
    count = rng.randint(2, 5)
    start = rng.choice((f"My {relation} {who.first} lives in {town}.",
                        f"My {relation} is called {who.first} and lives in {town}.",
                        f"My best friend is {who.first} from {town}."))  # fmt: skip
    return " ".join([start, *told[:count]])


def town(rng: Random, split: Split) -> str:
    """A town, its things and its people."""
    name, who = draw_town(rng, split), draw_someone(rng, split)
    job, colours = rng.choice(JOBS), rng.sample(COLOURS, 2)
    size = rng.choice(("small", "large", "quiet", "old", "busy"))
    start = rng.choice((f"{name} is a {size} town.", f"The town of {name} is {size}.",
                        f"I live in {name}. It is a {size} town."))  # fmt: skip
    return (
        f"{start} The houses are {colours[0]} and the doors are {colours[1]}. "
        f"{who.full} is the {job} there. {who.he.title()} knows everybody in {name}."
    )


def letter(rng: Random, split: Split) -> str:
    """A letter between two people."""
    one, other = draw_someone(rng, split), draw_someone(rng, split)
    item, place = rng.choice(ITEMS), draw_town(rng, split)
    news = rng.choice(
        (
            f"I am in {place} now, and I am well.",
            f"Yesterday I came to {place}. It is a nice town.",
            f"I hope that you are well. I am in {place}.",
        )
    )
    wish = rng.choice(
        (
            f"Thank you for the {item}. I use it every day.",
            f"Please send me the {item}. I need it here.",
            f"I have bought {with_article(item)} for you.",
        )
    )
    end = rng.choice(("See you soon.", "Please write back.", "I will be home on Sunday."))
    return f"Dear {other.first},\n{news} {wish} {end}\nYour {one.first}"


def sale(rng: Random, split: Split) -> str:
    """Somebody buys something."""
    who, seller, place = draw_someone(rng, split), draw_someone(rng, split), draw_town(rng, split)
    item, colour, price = rng.choice(ITEMS), rng.choice(COLOURS), rng.randint(2, 20)
    start = rng.choice(("Yesterday", "Last week", "This morning", "On Monday", "Today"))
    return (
        f"{start} {who.first} went to the market in {place}. {who.he.title()} wanted to buy "
        f'{with_article(item)}. "How much is the {colour} {item}?" asked {who.first}. '
        f'"It costs {price} coins", said {seller.first}. {who.first} paid and took the {item} home.'
    )


def shopping_list(rng: Random, split: Split) -> str:
    """A list, one thing a line."""
    purpose = rng.choice(list(_LISTS))
    things = rng.sample(_LISTS[purpose].split(), rng.randint(3, 6))
    if purpose == "take to the sea":
        head = rng.choice(("A list of things not to forget when going to the sea",
                           "Things to take to the sea"))  # fmt: skip
    else:
        head = rng.choice((f"A list of things to {purpose}", f"Things to {purpose}",
                           f"What you need to {purpose}"))  # fmt: skip
    return head + ":\n" + "\n".join(f"- {thing}" for thing in things)


KINDS = (weather, friend, town, letter, sale, shopping_list)


def write(rng: Random, split: Split) -> str:
    """A paragraph of one of the kinds."""
    return rng.choice(KINDS)(rng, split)
