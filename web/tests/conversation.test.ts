import { expect, test } from "vitest";
import {
  add,
  before,
  branch,
  change,
  choose,
  newConversation,
  readConversation,
  ROOT,
  sent,
  siblings,
  thoughtTitle,
} from "../src/chat/conversation";

const contents = (messages: { content: string }[]) => messages.map(({ content }) => content);

test("an edited message begins a branch, and the other is found again", () => {
  const [one, hello] = add(newConversation(), ROOT, "user", "Hello");
  const [two, answer] = add(one, hello.id, "assistant", "Hi.");
  const [three, edited] = add(two, ROOT, "user", "Good day");

  expect(contents(branch(three))).toEqual(["Good day"]);
  expect(contents(siblings(three, edited))).toEqual(["Hello", "Good day"]);
  expect(contents(branch(choose(three, hello)))).toEqual(["Hello", "Hi."]);
  expect(contents(before(three, answer.id))).toEqual(["Hello"]);
});

test("the first message is the title", () => {
  const [titled] = add(newConversation(), ROOT, "user", `A question\nwith more`);
  const [still] = add(titled, ROOT, "user", "Another");

  expect(still.title).toBe("A question");
});

test("what was exported is read again, under an id of its own", () => {
  const [chat] = add(newConversation(), ROOT, "user", "Hello");
  const read = readConversation(JSON.parse(JSON.stringify(chat)));

  expect(contents(branch(read))).toEqual(["Hello"]);
  expect(read.id).not.toBe(chat.id);
});

test("a thought is kept, and sent with the next turn", () => {
  const [asked, question] = add(newConversation(), ROOT, "user", "2+2?");
  const [begun, answer] = add(asked, question.id, "assistant", "");
  const thought = { text: "Easy.", seconds: 0.5, numTokens: 3 };
  const answered = change(begun, answer.id, { content: "4", thought });
  const read = readConversation(JSON.parse(JSON.stringify(answered)));

  expect(branch(read).map(sent)).toEqual([
    { role: "user", content: "2+2?" },
    { role: "assistant", content: "4", reasoning_content: "Easy." },
  ]);
});

test.each([
  [{ seconds: null, numTokens: null }, true, "Thinking …"],
  [{ seconds: 3.21, numTokens: null }, true, "Thought for 3.2 s"],
  [{ seconds: 3.21, numTokens: 120 }, false, "Thought for 3.2 s, 120 tokens"],
  [{ seconds: null, numTokens: null }, false, "Thought"],
])("a folded thought says how long it was", (known, isWritten, title) => {
  expect(thoughtTitle({ text: "…", ...known }, isWritten)).toBe(title);
});

test.each([
  [[], "`title`"],
  [{ title: "a", system: "", messages: { m: { role: "robot" } }, chosen: {} }, "`messages.m.role`"],
  [{ title: "a", system: "", messages: { m: { role: "user", content: 1 } }, chosen: {} }, "`messages.m`"],
  [
    { title: "a", system: "", messages: { m: { role: "assistant", content: "", parent: "root", thought: 1 } }, chosen: {} },
    "`messages.m.thought`",
  ],
])("what is no conversation is refused with its place", (value, place) => {
  expect(() => readConversation(value)).toThrow(place);
});
