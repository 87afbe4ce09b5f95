"""Queries in queries: as a hole's type, and called from Python, several at once."""

import asyncio

from client.query import query


@query
async def home_of(who):
    """
    "Q: Where does {who} live?\nA: {who} lives in[TOWN]" where stops_before(TOWN, ".")
    return TOWN.strip()
    """


@query
async def neighbours(names):
    """
    towns = await asyncio.gather(*(home_of(name) for name in names))
    for name, town in zip(names, towns):
        "{name}: {town}\n"
    "And {names[0]} once more: [HOME: home_of(names[0])]."
    return dict(zip(names, towns))
    """


async def main() -> None:
    result = await neighbours.run(["Doric Caldman", "Mara Eldwin", "Tobin Hartley"])
    print(result.prompt)
    print(f"{len(result.requests)} requests, {result.usage.num_output_tokens} tokens")


if __name__ == "__main__":
    asyncio.run(main())
