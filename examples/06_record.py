"""A dataclass as a hole's type: the text is JSON of its fields, the value an instance."""

from dataclasses import dataclass

from client.query import query


@dataclass(frozen=True)
class Person:
    name: str
    age: int
    town: str
    likes: list[str]


@query
def person_in(text):
    """
    "Extract name, age, town and likes as JSON: {text}\n[PERSON: Person]"
    return PERSON
    """


if __name__ == "__main__":
    told = "Nelby Lakeridge is 43 years old. Nelby Lakeridge lives in Eldhaven. "
    person = person_in(told + "Nelby Lakeridge likes soup and plums.")
    print(person)
    print(person.age + 1)
