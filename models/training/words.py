"""Word lists that several kinds of text share. Knows no templates."""

JOBS = tuple(
    "baker sailor teacher doctor farmer miller weaver fisher painter carpenter smith gardener "
    "tailor shepherd potter cook clerk nurse hunter builder singer writer mason cobbler driver "
    "judge guard printer brewer barber".split()
)
FOODS = tuple(
    "bread soup cheese figs honey plums cake fish rice beans nuts apples pears cherries porridge "
    "pie butter eggs grapes carrots onions mushrooms".split()
)
PETS = tuple("cat dog goat parrot rabbit pony hen duck turtle goose hamster donkey".split())
COLOURS = tuple("red blue green yellow white black brown grey orange purple pink golden".split())
THINGS = tuple(
    "apples marbles shells coins books pencils stamps cards buttons stones feathers candles eggs "
    "cookies plums nuts flowers stickers beads ropes keys bottles baskets cups plates lamps "
    "hats boats kites bells ribbons tickets".split()
)
ITEMS = tuple(
    "lamp chair table clock kettle basket blanket hat coat rope drum mirror bucket knife spoon "
    "candle box bag boat kite bell book umbrella ladder carpet pillow".split()
)
SIGHTS = tuple(
    f"{kind} {place}"
    for kind in ("old", "tall", "stone", "great", "white", "round", "hidden", "silver", "broken")
    for place in (
        "bridge", "tower", "mill", "oak", "well", "garden", "market", "lighthouse", "statue",
        "library", "gate", "fountain", "windmill", "arch",
    )
)  # fmt: skip
RIVERS = tuple(
    "Ember Wend Lark Tamble Brindle Osier Sorrel Marl Teal Finch Amber Rill Heron Swift Nettle "
    "Willow Copper Raven".split()
)
EVENTS = tuple("fair concert race wedding market dance play lecture feast parade".split())


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def join_words(words: list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
