"""Which of four or five words does not belong: each word is named, then the odd one."""

from random import Random

from models.training.document import Example, Split, answer
from models.training.holdout import belongs

CATEGORIES: dict[str, tuple[str, ...]] = {
    kind: tuple(words.split())
    for kind, words in {
        "clothing": "skirt dress jacket shirt sock glove scarf coat hat belt shoe apron cloak vest",
        "an animal": "fox bear owl rabbit duck squirrel otter goat sheep crow frog mouse swan wolf",
        "a fruit": "apple pear plum cherry grape fig lemon melon peach berry orange banana",
        "a tool": "hammer saw drill chisel axe shovel rake wrench spade pliers file plane",
        "a vehicle": "car bus train boat truck bicycle wagon sledge ship tram cart canoe",
        "furniture": "table chair bed sofa desk shelf bench stool cupboard wardrobe dresser",
        "an instrument": "flute drum violin harp trumpet piano guitar horn cello organ banjo",
        "a flower": "rose tulip daisy lily violet poppy iris orchid lilac sunflower",
        "a tree": "oak birch pine willow elm maple beech cedar larch poplar alder",
        "a metal": "iron gold silver copper tin lead steel zinc bronze brass",
        "a drink": "water milk tea coffee juice cider wine beer cocoa lemonade",
        "a building": "house tower barn castle mill church school shed palace cottage inn",
        "a job": "baker sailor teacher doctor farmer miller weaver painter tailor potter cook",
        "a body part": "hand foot nose ear knee elbow chin finger shoulder neck thumb",
        "a vegetable": "carrot onion cabbage bean pea turnip potato leek radish spinach pumpkin",
    }.items()
}

_QUESTIONS = (
    "Pick the odd word out: {words}.",
    "Which word does not belong: {words}?",
    "Find the odd one: {words}.",
    "Which is the odd one out: {words}?",
)


def draw(rng: Random, split: Split) -> Example:
    """A question; held out are sets of words."""
    while True:
        common, other = rng.sample(sorted(CATEGORIES), 2)
        odd = rng.choice(CATEGORIES[other])
        words = [*rng.sample(CATEGORIES[common], rng.choice((3, 3, 3, 4))), odd]
        if belongs(split, "odd", *sorted(words)):
            break
    rng.shuffle(words)
    named = ", ".join(f"{word} is {other if word == odd else common}" for word in words)
    return Example(
        "odd one out",
        rng.choice(_QUESTIONS).format(words=", ".join(words)),
        answer(f"Let me see: {named}. So the odd one is {odd}."),
        odd,
    )


def is_right(example: Example, text: str) -> bool:
    return text.rstrip().endswith(f"So the odd one is {example.target}.")
