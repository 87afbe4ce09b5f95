"""Small talk, who the model is, and what it does not know."""

from random import Random

from models.training import prose, words
from models.training.document import Example, Split, answer
from models.training.holdout import belongs
from models.training.names import draw_someone, draw_town
from models.training.world import PEOPLE, TOWNS

NAME = "Pip"
_WORLD = "I only know a small invented world: its towns, people and animals."

_TALK: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Hello!", "Hello", "Hi", "Hi!", "Hey", "Good morning!", "Good day.", "Hello there!",
      "Hi Pip!"),
     "Hello! What can I do for you today?"),
    (("How are you?", "How are you today?", "Are you well?", "How do you do?"),
     "I am well, thank you. How can I help you?"),
    (("Who are you?", "What are you?", "What is your name?", "Tell me about yourself.",
      "Introduce yourself.", "Are you a human?", "Are you a robot?", "Are you an AI?"),
     f"I am {NAME}, a very small language model. {_WORLD}"),
    (("What can you do?", "How can you help me?", "What do you know?", "Help", "Help me."),
     "I can tell stories, answer questions about my small world, work out sums and dates, find the "
     "odd one out, write JSON and search."),
    (("Thank you.", "Thanks!", "Thank you very much!", "Thanks a lot."),
     "You are welcome."),
    (("Goodbye!", "Bye", "Bye!", "See you soon.", "Good night."), "Goodbye! Have a nice day."),
    (("Who made you?", "Who trained you?", "Where do you come from?"),
     "I was trained on two processor cores, on text that a program wrote."),
    (("What is your favourite colour?", "What do you like?", "Do you like music?",
      "Are you happy?", "Do you sleep?", "Where do you live?", "How old are you?"),
     "I am only a small language model, so I have no life of my own."),
    (("Tell me a joke.", "Do you know a joke?", "Make me laugh.", "Tell me something funny."),
     "Why did the fox cross the river? Because the bridge was asleep."),
    (("I am sad.", "I am tired.", "I feel lonely.", "I am not well."),
     "I am sorry to hear that. Shall I tell you a story?"),
    (("I am happy.", "Today is a good day.", "I like you.", "You are great!", "Well done!"),
     "I am glad to hear that."),
    (("Which towns do you know?", "Name some towns.", "Which towns are in your world?"),
     f"I know {words.join_words([town.name for town in TOWNS[:5]])}, and some more."),
    (("Which people do you know?", "Name some people.", "Who lives in your world?"),
     f"I know {words.join_words([person.name for person in PEOPLE[:4]])}, and some more."),
    (("Yes", "No", "Okay", "Ok.", "I see.", "Sure.", "Maybe."), "What can I do for you?"),
)  # fmt: skip

_COUNTRIES = (
    "France Germany Spain Italy Japan China India Brazil Canada Mexico Egypt Kenya Poland Norway "
    "Sweden Finland Greece Turkey Russia England Scotland Ireland Portugal Austria Hungary Peru "
    "Chile Cuba Iran Iraq Israel Nepal Korea Vietnam Thailand Australia America Africa Europe Asia "
    "Denmark Iceland Belgium Holland Switzerland Morocco Nigeria Argentina"
).split()
_CITIES = (
    "Paris London Berlin Rome Madrid Tokyo Moscow Vienna Warsaw Prague Oslo Athens Cairo Delhi "
    "Boston Chicago Toronto Sydney Lisbon Dublin Munich Beijing"
).split()
_TOPICS = (
    "gravity democracy electricity evolution inflation music history physics chemistry biology "
    "philosophy religion art science energy light time space war peace love money trade sport "
    "football chess cooking medicine politics economics computers software machines engines planes "
    "rockets phones television radio internet robots cars trains nuclear atoms molecules cells "
    "viruses bacteria vaccines cancer sleep dreams memory language grammar poetry films theatre "
    "dance fashion taxes law banks stocks insurance weather climate oceans volcanoes earthquakes "
    "planets stars galaxies moon sun dinosaurs whales sharks elephants lions tigers monkeys snakes"
).split()
_SINGLE = (
    "computer phone engine rocket car plane camera television radio robot battery magnet telescope "
    "microscope volcano planet star atom molecule cell virus heart brain bank company "
    "government president king queen parliament church university hospital factory algorithm "
    "program function variable compiler database server network keyboard screen printer printing "
    "novel poem symphony elephant lion tiger shark whale dinosaur monkey snake triangle circle "
    "number equation"
).split()
_LANGUAGES = "French German Spanish Italian Japanese Chinese Polish Russian Latin Greek".split()
_CODES = "Python Java Rust Go Haskell Ruby Bash JavaScript SQL HTML".split()
_WORKS = ("Hamlet", "the Bible", "Faust", "the Odyssey", "this book", "Don Quixote",
          "War and Peace", "the Mona Lisa", "this song", "the national anthem")  # fmt: skip
_DEEDS = (
    "lose weight", "learn French", "find a job", "cook pasta", "fix my car", "sleep better",
    "make money", "write a letter to my boss", "invest", "get a visa", "build a house",
    "repair a bicycle", "install a program", "play the piano", "pass an exam", "stop smoking",
)  # fmt: skip

# Question, answer. The words of the question that matter come back in the answer.
_UNKNOWN: tuple[tuple[str, str], ...] = (
    ("What is the capital of {country}?", f"I do not know the capital of {{country}}. {_WORLD}"),
    ("Tell me the capital of {country}.", f"I do not know the capital of {{country}}. {_WORLD}"),
    ("Who is the president of {country}?", f"I do not know who leads {{country}}. {_WORLD}"),
    ("Who is the king of {country}?", f"I do not know who leads {{country}}. {_WORLD}"),
    ("How many people live in {place}?", f"I do not know anything about {{place}}. {_WORLD}"),
    ("Where is {place}?", f"I do not know anything about {{place}}. {_WORLD}"),
    ("Tell me about {place}.", f"I do not know anything about {{place}}. {_WORLD}"),
    ("What is the best hotel in {place}?", f"I do not know anything about {{place}}. {_WORLD}"),
    ("What is {topic}?", f"I do not know that. {_WORLD}"),
    ("Explain {topic}.", f"I do not know that. {_WORLD}"),
    ("Explain {topic} to a child.", f"I do not know that. {_WORLD}"),
    ("Tell me about {topic}.", f"I do not know that. {_WORLD}"),
    ("Who invented {topic}?", f"I do not know that. {_WORLD}"),
    ("What do you think about {topic}?", f"I do not know that. {_WORLD}"),
    ("Why is {topic} important?", f"I do not know that. {_WORLD}"),
    ("What is the history of {topic}?", f"I do not know that. {_WORLD}"),
    ("What is a {single}?", f"I do not know that. {_WORLD}"),
    ("How does a {single} work?", f"I do not know that. {_WORLD}"),
    ("Who invented the {single}?", f"I do not know that. {_WORLD}"),
    ("How much does a {single} cost?", f"I do not know that. {_WORLD}"),
    ("Why does the {single} move?", f"I do not know that. {_WORLD}"),
    ("Who wrote {work}?", f"I do not know that. {_WORLD}"),
    ("When was {work} written?", f"I do not know that. {_WORLD}"),
    ("How do I {deed}?", f"I do not know that. {_WORLD}"),
    ("How can I {deed}?", f"I do not know that. {_WORLD}"),
    ("Can you help me to {deed}?", f"I do not know that. {_WORLD}"),
    ("What is the weather like in {place}?", "I do not know today's weather."),
    ("What is the weather today?", "I do not know today's weather."),
    ("What is in the news?", f"I do not know that. {_WORLD}"),
    ("What time is it?", "I do not know the time."),
    ("What is the meaning of life?", f"I do not know that. {_WORLD}"),
    ("Translate {single} into {language}.", "I cannot translate. I only know simple English."),
    ("How do you say {single} in {language}?", "I cannot translate. I only know simple English."),
    ("Do you speak {language}?", "I cannot translate. I only know simple English."),
    ("Write a program in {code}.", "I cannot write programs. I only know simple English."),
    ("Write a {code} function that sorts a list.",
     "I cannot write programs. I only know simple English."),
    ("Write a poem about {topic}.", "I cannot write poems. Shall I tell you a story?"),
    ("Please write a poem about the {single}.", "I cannot write poems. Shall I tell you a story?"),
    ("Sing a song about {topic}.", "I cannot write poems. Shall I tell you a story?"),
    ("Write an essay about {topic}.", f"I do not know that. {_WORLD}"),
    ("What is the square root of {n}?", "I can only add, subtract, multiply and divide."),
    ("Solve the equation {n}x = {m}.", "I can only add, subtract, multiply and divide."),
    ("What is {n} percent of {m}?", "I can only add, subtract, multiply and divide."),
    ("Where does {person} live?", "I do not know {person}."),
    ("What is the job of {person}?", "I do not know {person}."),
    ("Who is {person}?", "I do not know {person}."),
    ("What does {person} do?", "I do not know {person}."),
    ("Which pet does {person} have?", "I do not know {person}."),
    ("Tell me about {person}.", "I do not know {person}."),
    ("What does {person} like to eat?", "I do not know {person}."),
    ("Which river flows through {town}?", "I do not know {town}."),
    ("Who is the mayor of {town}?", "I do not know {town}."),
    ("What is {town} known for?", "I do not know {town}."),
    ("When was {town} founded?", "I do not know {town}."),
    ("What do people eat in {town}?", "I do not know {town}."),
)  # fmt: skip


def draw_talk(rng: Random) -> Example:
    questions, reply = rng.choice(_TALK)
    question = rng.choice(questions)
    if rng.random() < 0.15:
        question = question.lower().rstrip("?!.")
    return Example("talk", question, answer(reply), reply)


def draw_unknown(rng: Random, split: Split) -> Example:
    """A question about what lies outside; held out are pairs of a wording and its words."""
    while True:
        question, reply = rng.choice(_UNKNOWN)
        chosen = {
            "country": rng.choice(_COUNTRIES),
            "place": rng.choice(_CITIES + _COUNTRIES),
            "topic": rng.choice(_TOPICS),
            "single": rng.choice(_SINGLE),
            "work": rng.choice(_WORKS),
            "deed": rng.choice(_DEEDS),
            "language": rng.choice(_LANGUAGES),
            "code": rng.choice(_CODES),
            "n": str(rng.randint(2, 999)),
            "m": str(rng.randint(2, 999)),
        }
        used = [chosen[key] for key in chosen if f"{{{key}}}" in question]
        if not used or belongs(split, "unknown", question, *used):
            break
    chosen |= {"person": draw_someone(rng, split).full, "town": draw_town(rng, split)}
    return Example(
        "unknown", question.format(**chosen), answer(reply.format(**chosen)), reply.format(**chosen)
    )


def draw_say(rng: Random, split: Split) -> Example:
    """Repeat after me."""
    text = rng.choice(prose.write(rng, split).split(".")[0].splitlines()).strip(' -"')
    order = rng.choice(('Say "{}".', 'Repeat: "{}"', "Say '{}'", 'Write "{}" again.'))
    return Example("say", order.format(text), answer(text), text)


def draw_list(rng: Random, split: Split) -> Example:
    """A list that was asked for."""
    head, _, things = prose.shopping_list(rng, split).partition(":\n")
    start = rng.choice(("Write", "Give me", "Make"))
    head = f"{head[0].lower()}{head[1:]}"
    question = f"{start} {head}." if head.startswith("a list") else f"{start} a list: {head}."
    return Example("list", question, answer(things), things)


def is_right(example: Example, text: str) -> bool:
    return text.strip() == example.target


def known_words() -> list[str]:
    """Words that questions are made of, each often enough for the tokenizer to keep it whole."""
    spoken = [*_TOPICS, *_SINGLE, *_COUNTRIES, *_CITIES, *_LANGUAGES]
    return [f" {word}" for word in spoken for _ in range(8)]
