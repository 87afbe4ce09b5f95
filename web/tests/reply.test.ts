import { expect, test } from "vitest";
import { Reply } from "../src/chat/reply";

const chunk = (delta: object, reason: string | null = null) => ({ choices: [{ delta, finish_reason: reason }] });
const thinking = (text: string) => chunk({ reasoning: text, reasoning_content: text });
const usage = {
  choices: [],
  usage: {
    prompt_tokens: 40,
    completion_tokens: 9,
    prompt_tokens_details: { cached_tokens: 32 },
    completion_tokens_details: { reasoning_tokens: 6 },
  },
};

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
  expect(ended.ending(512, false)).toBe("stop · 9 tokens · 1.7 tokens/s · first after 0.40 s · prompt 40 (32 cached) · context 49 of 512");
});

test("an answer that was cut goes on behind what it has, and keeps its thought", () => {
  const thought = { text: "Paris?", seconds: 1, numTokens: 6 };
  const reply = new Reply(() => 0, { content: "It is", thought });
  reply.push(chunk({ role: "assistant", content: " Paris." }, "stop"));
  reply.push(usage);

  expect(reply.text).toBe("It is Paris.");
  expect(reply.thought).toEqual(thought);
});

test("a thought that is cut ends with the answer", () => {
  const cut = after([0, thinking("Paris")], [1500, chunk({}, "length")]);
  expect(cut.thought).toEqual({ text: "Paris", seconds: 1.5, numTokens: null });
  expect(cut.text).toBe("");
});

test("whether a constraint holds is said of one that the user wrote", () => {
  const satisfied = { choices: [{ delta: {}, finish_reason: "stop", constraint_satisfied: true }] };
  const reply = after([0, chunk({ content: "Hi" })], [5, satisfied]);
  expect(reply.ending(null, true)).toBe("stop · constraint satisfied");
  expect(reply.ending(null, false)).toBe("stop");
});

test("an answer without a thought has none", () => {
  expect(after([0, chunk({ role: "assistant", content: "" })], [5, chunk({ content: "Hi" })], [6, usage]).thought).toBeUndefined();
});
