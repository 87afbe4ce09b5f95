import { expect, test } from "vitest";
import { add, before, branch, choose, newConversation, readConversation, ROOT, siblings } from "../src/chat/conversation";

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

test.each([
  [[], "`title`"],
  [{ title: "a", system: "", messages: { m: { role: "robot" } }, chosen: {} }, "`messages.m.role`"],
  [{ title: "a", system: "", messages: { m: { role: "user", content: 1 } }, chosen: {} }, "`messages.m`"],
])("what is no conversation is refused with its place", (value, place) => {
  expect(() => readConversation(value)).toThrow(place);
});
