"""Short stories with a plan and a state: one hero, one place, one want, one way to the end."""

from dataclasses import dataclass
from random import Random

from models.training.document import Example, Split, answer
from models.training.names import Someone, draw_someone, draw_town

_KINDS = ("fox bear owl rabbit duck squirrel hedgehog otter goat sheep crow frog mouse swan badger "
          "cat dog pony donkey goose hen turtle").split()  # fmt: skip
_TRAITS = "brave kind clever lonely quiet curious cheerful shy patient proud".split()
_LOST = "key ring hat bell book lantern coat basket map whistle spoon letter".split()
_PLACES = {
    "forest": ("under an old oak", "between the tall trees", "behind a mossy stone"),
    "river": ("under the stone bridge", "between the reeds", "on the muddy bank"),
    "market": ("below a table", "behind the bread stand", "next to the fountain"),
    "hill": ("in the long grass", "near the windmill", "under a flat stone"),
    "garden": ("among the roses", "beside the well", "behind the shed"),
}
_WEATHER = {
    "sunny": ("The sun was warm", "The sun went down"),
    "rainy": ("The rain fell softly", "The rain had stopped"),
    "windy": ("The wind was strong", "The wind was quiet again"),
    "cold": ("Snow covered the road", "The stars came out over the snow"),
}
_LESSONS = (
    "From that day on {he} was never alone.",
    "It was a good day, and {name} slept well.",
    "After that, {name} always helped others too.",
    "And they were friends for the rest of their lives.",
    "{name} never forgot that day.",
)


@dataclass(frozen=True, slots=True)
class State:
    """What stays true from the first sentence to the last."""

    name: str
    hero: str
    he: str
    him: str
    his: str
    trait: str
    helper: str
    helper_name: str
    place: str
    spot: str
    lost: str
    town: str
    weather: str
    now: str
    later: str


_OPENINGS = (
    "Once there was a {trait} {hero} called {name} who lived near {town}.",
    "Once upon a time a {trait} {hero} called {name} lived near {town}.",
    "There was once a {hero} called {name}. {He} was very {trait} and lived in {town}.",
    "In {town} lived a {trait} {hero} called {name}.",
    "A {trait} {hero} called {name} lived in a small house near {town}.",
)
_DAYS = (
    "One {weather} morning {he} went to the {place}. {now}, but {name} did not mind.",
    "One {weather} day {name} walked to the {place}. {now}.",
    "On a {weather} morning {name} went out to the {place}. {now}.",
)
_PLOTS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (
        ("There {he} saw that {his} {lost} was gone.", "At the {place} {he} lost {his} {lost}."),
        ("{name} looked everywhere, but could not find it.", "{He} looked for it until noon."),
        (
            'Then a {helper} called {friend} came along. "What are you looking for?" asked '
            '{friend}. "I have lost my {lost}", said {name}.',
            '"Why are you so sad?" asked a {helper} called {friend}. "My {lost} is gone", said '
            "{name}.",
        ),
        ('"I can help you", said {friend}, and they looked together.',),
        ("They found the {lost} {spot}.", "At last {friend} found the {lost} {spot}."),
        ('"Thank you, {friend}!" said {name}. {later} when they walked home.',),
    ),
    (
        ("There {he} met a {helper} called {friend} who was crying.",),
        ('"What is wrong?" asked {name}. "I am hungry and I have nothing to eat", said {friend}.',
         '"Why do you cry?" asked {name}. "I have had no food for two days", said {friend}.'),
        ("{name} had only one piece of bread.", "{name} had a little bread and some cheese."),
        ("{He} gave half of it to {friend}, and they ate together {spot}.",),
        ('"You are very kind", said {friend}. "One day I will help you."',),
        ("{later}, and {name} went home with a light heart.",),
    ),
    (
        ("There {he} found a {lost} {spot}.", "{spot_up} {he} saw an old {lost}."),
        ('"Whose {lost} is this?" asked {name}.', "{name} did not know whose {lost} it was."),
        ("{He} asked everybody in {town}, but nobody knew.",),
        ('Then a {helper} called {friend} said: "That is my {lost}! I lost it last week."',),
        ("{name} gave the {lost} back at once.",),
        ('"Thank you!" said {friend}. "Come and eat with me." {later} when they sat down.',),
    ),
    (
        ("{name} wanted to cross the {place}, but the way was closed.",
         "{name} wanted to go home, but {he} did not know the way."),
        ("{He} sat down {spot} and waited.",),
        ('A {helper} called {friend} came by. "Are you lost?" asked {friend}. "Yes", said '
         "{name}.",),
        ('"Follow me", said {friend}. "I know every path here."',),
        ("They walked for an hour and talked about {his} {lost}.",),
        ("{later} when they came to {town}.", "At last they saw the lights of {town}. {later}."),
    ),
    (
        ("There {he} heard a small voice {spot}.",),
        ("It was a {helper} called {friend} whose foot was caught.",),
        ('"Please help me!" cried {friend}. "Do not be afraid", said {name}.',),
        ("{name} pulled and pulled until {friend} was free.",),
        ("{friend} gave {him} a {lost} to say thank you.",),
        ("{later} when {name} went home with the {lost}.",),
    ),
)  # fmt: skip


def _draw_state(rng: Random, split: Split, hero: str | None) -> State:
    hero_name: Someone = draw_someone(rng, split)
    while (friend := draw_someone(rng, split)).first == hero_name.first:
        pass
    place, weather = rng.choice(list(_PLACES)), rng.choice(list(_WEATHER))
    people = ("woman", "girl") if hero_name.is_woman else ("man", "boy")
    kind = hero or rng.choice([*_KINDS, *people * 4])
    return State(
        name=hero_name.first,
        hero=kind,
        he=hero_name.he,
        him=hero_name.him,
        his=hero_name.his,
        trait=rng.choice(_TRAITS),
        helper=rng.choice([other for other in _KINDS if other != kind]),
        helper_name=friend.first,
        place=place,
        spot=rng.choice(_PLACES[place]),
        lost=rng.choice(_LOST),
        town=draw_town(rng, split),
        weather=weather,
        now=_WEATHER[weather][0],
        later=_WEATHER[weather][1],
    )


def _grammatical(text: str) -> str:
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
    return text


def tell(rng: Random, split: Split, hero: str | None = None) -> str:
    """A story of some eight sentences; the hero is a kind of animal, or chosen."""
    state = _draw_state(rng, split, hero)
    plot = rng.choice(_PLOTS)
    beats = [rng.choice(_OPENINGS), rng.choice(_DAYS), *(rng.choice(beat) for beat in plot)]
    beats.append(rng.choice(_LESSONS))
    text = " ".join(beats).format(
        name=state.name, hero=state.hero, he=state.he, him=state.him, his=state.his,
        He=state.he.title(), trait=state.trait, helper=state.helper, friend=state.helper_name,
        place=state.place, spot=state.spot, spot_up=state.spot[0].upper() + state.spot[1:],
        lost=state.lost, town=state.town, weather=state.weather, now=state.now, later=state.later,
    )  # fmt: skip
    return _grammatical(text)


_ORDERS = ("Tell me a story about {}.", "Write a story about {}.", "Write a short story about {}.",
           "Can you tell me a story about {}?", "I want to hear a story about {}.")  # fmt: skip


def draw(rng: Random, split: Split) -> Example:
    """A story that was asked for."""
    if rng.random() < 0.2:
        question = rng.choice(("Tell me a story.", "Write a story.", "Can you tell me a story?"))
        return Example("story", question, answer(tell(rng, split)), "")
    hero = rng.choice(_KINDS)
    question = _grammatical(rng.choice(_ORDERS).format(f"a {hero}"))
    return Example("story", question, answer(tell(rng, split, hero)), hero)
