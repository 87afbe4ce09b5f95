"""A loop with tools: `make serve`, `pip install openai`, run this file.

A call is one of the tools, with arguments as its schema has them, however small the model is.
"""

import json
import os

from openai import OpenAI

URL = os.environ.get("TANDEM_URL", "http://127.0.0.1:3000")
QUESTIONS = ("What is the weather in Paris?", "How many people live in Paris?")


# In place of those that look something up.


def get_weather(city: str) -> str:
    """The weather in a city"""
    return "It is sunny, with 21 degrees."


def get_population(city: str) -> str:
    """How many people live in a city"""
    return f"{city} has 2.1 million inhabitants."


FUNCTIONS = {function.__name__: function for function in (get_weather, get_population)}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": function.__doc__,
            "strict": True,
            "parameters": CITY,
        },
    }
    for name, function in FUNCTIONS.items()
]


def answer(client: OpenAI, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    # A small model would rather talk: it has to call first, and then may do as it likes.
    choice = "required"
    while True:
        completion = client.chat.completions.create(
            model="tgi",
            temperature=0,
            max_tokens=100,
            messages=messages,
            tools=TOOLS,
            tool_choice=choice,
            parallel_tool_calls=False,
        )
        message = completion.choices[0].message
        if not message.tool_calls:
            return message.content
        choice = "auto"
        messages.append(message)
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)
            result = FUNCTIONS[call.function.name](**arguments)
            print(f"  {call.function.name}({arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    client = OpenAI(base_url=f"{URL}/v1", api_key="none")
    for question in QUESTIONS:
        print(question)
        print(" ", answer(client, question))
