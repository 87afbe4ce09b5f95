import { expect, test } from "vitest";
import { Reply } from "../src/chat/reply";

const chunk = (delta: object, reason: string | null = null) => ({ choices: [{ delta, finish_reason: reason }] });
const thinking = (text: string) => chunk({ reasoning: text, reasoning_content: text });
const usage = { choices: [], usage: { completion_tokens: 9, completion_tokens_details: { reasoning_tokens: 6 } } };

function after(...chunks: [atMs: number, chunk: object][]) {
  let nowMs = 0;
  const reply = new Reply(() => nowMs);
  for (const [atMs, each] of chunks) {
    nowMs = atMs;
    reply.push(each);
  }
  return reply;
}

test("a thought grows beside the text, and ends where something is said", () => {
  const opened = after([100, chunk({ role: "assistant", content: null })], [400, thinking("Paris?\n")]);
  expect(opened.thought).toEqual({ text: "Paris?\n", seconds: null, numTokens: null });

  const chunks: [number, object][] = [
    [100, chunk({ role: "assistant", content: null })],
    [400, thinking("Paris?\n")],
    [900, thinking("Yes.")],
    [2600, chunk({ content: "It is" })],
    [5000, chunk({ content: " Paris." })],
    [5100, chunk({}, "stop")],
    [5200, usage],
  ];
  const ended = after(...chunks);
  expect(ended.thought).toEqual({ text: "Paris?\nYes.", seconds: 2.5, numTokens: 6 });
  expect(ended.text).toBe("It is Paris.");
  expect(ended.ending(1000)).toBe("stop · 9 tokens · 9.0 tokens/s");
});

test("a thought that is cut ends with the answer", () => {
  const cut = after([0, thinking("Paris")], [1500, chunk({}, "length")]);
  expect(cut.thought).toEqual({ text: "Paris", seconds: 1.5, numTokens: null });
  expect(cut.text).toBe("");
});

test("an answer without a thought has none", () => {
  expect(after([0, chunk({ role: "assistant", content: "" })], [5, chunk({ content: "Hi" })], [6, usage]).thought).toBeUndefined();
});
