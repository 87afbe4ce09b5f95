"""Data out of texts, as objects of a class: `make serve`, `pip install openai`, run this file.

The schema is enforced token by token, ranges and lengths included, and the answer ends in time, so
that it can be parsed. What it says is up to the model; this one has 135 million parameters.
"""

import os

from openai import OpenAI
from pydantic import BaseModel, Field

URL = os.environ.get("TANDEM_URL", "http://127.0.0.1:3000")
TEXTS = (
    "John Smith is 42 years old and lives in Berlin.",
    "My name is Ken, I am 27 and I live in Osaka.",
    "Sarah Miller, a 29 year old engineer from Chicago, won the race.",
)


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=120)
    city: str = Field(max_length=40)


if __name__ == "__main__":
    client = OpenAI(base_url=f"{URL}/v1", api_key="none")
    for text in TEXTS:
        answer = client.chat.completions.parse(
            model="tgi",
            temperature=0,
            max_tokens=100,
            messages=[{"role": "user", "content": text}],
            response_format=Person,
        )
        print(repr(answer.choices[0].message.parsed))
