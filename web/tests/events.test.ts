import { expect, test } from "vitest";
import { readEvents } from "../src/api/events";

function bodyOf(pieces: string[]): ReadableStream<Uint8Array> {
  const bytes = new TextEncoder();
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(bytes.encode(piece));
      controller.close();
    },
  });
}

async function all(pieces: string[]): Promise<unknown[]> {
  const found: unknown[] = [];
  for await (const event of readEvents(bodyOf(pieces))) found.push(event);
  return found;
}

test("events are whole however the network cuts them", async () => {
  const text = 'data: {"a":"Grüße"}\n\n: a comment\n\nid: 7\ndata: {"a":2}\n\ndata: [DONE]\n\ndata: {"a":3}\n\n';
  for (let size = 1; size < text.length; size++) {
    const pieces = Array.from({ length: Math.ceil(text.length / size) }, (_, index) => text.slice(index * size, (index + 1) * size));
    expect(await all(pieces)).toEqual([{ a: "Grüße" }, { a: 2 }]);
  }
});

test("a stream that just ends has no event more", async () => {
  expect(await all(['data: {"a":1}\n\n', "data: "])).toEqual([{ a: 1 }]);
});
