import { expect, test } from "vitest";
import type { Conversation } from "../src/chat/conversation";
import { add, addResults, branch, change, editResult, newConversation, readConversation, ROOT, sent, siblings } from "../src/chat/conversation";
import { Reply } from "../src/chat/reply";
import { laidOut } from "../src/tools/call";
import { EXAMPLE, readTools } from "../src/tools/tools";

const piece = (index: number, more: string, begins: object = {}) => ({
  choices: [{ delta: { tool_calls: [{ index, ...begins, function: { ...begins, arguments: more } }] }, finish_reason: null }],
});
const CALLS = [
  { id: "a", name: "get_weather", arguments: '{"city": "Paris"}' },
  { id: "b", name: "get_weather", arguments: '{"city": "Rome"}' },
];

function called(): [Conversation, string] {
  const [asked, question] = add(newConversation(), ROOT, "user", "Weather?");
  const [begun, message] = add(asked, question.id, "assistant", "");
  return [change(begun, message.id, { calls: CALLS }), message.id];
}

test("calls are put together from their pieces, several at once", () => {
  const reply = new Reply();
  reply.push(piece(0, "", { id: "a", name: "one" }));
  reply.push(piece(0, '{"x"'));
  expect(reply.calls).toEqual([{ id: "a", name: "one", arguments: '{"x"' }]);
  reply.push(piece(0, ": 1}"));
  reply.push(piece(1, '{"y', { id: "b", name: "two" }));

  expect(reply.calls?.map(({ name }) => name)).toEqual(["one", "two"]);
  reply.dropBeginnings();
  expect(reply.calls).toEqual([{ id: "a", name: "one", arguments: '{"x": 1}' }]);
});

test("arguments are laid out while they come, and as they were written", () => {
  expect(laidOut('{"a":{"b":1.50,"c": "x{')).toBe('{\n  "a": {\n    "b": 1.50,\n    "c": "x{');
});

test("results go out in the order of their calls, and errors say so", () => {
  const [conversation, id] = called();
  const [answered] = addResults(conversation, id, [
    { call: CALLS[0]!, content: "Sunny", isError: false },
    { call: CALLS[1]!, content: "", isError: true },
  ]);
  const read = readConversation(JSON.parse(JSON.stringify(answered)));

  const wire = (call: (typeof CALLS)[0]) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } });
  expect(branch(read).map(sent)).toEqual([
    { role: "user", content: "Weather?" },
    { role: "assistant", content: null, tool_calls: CALLS.map(wire) },
    { role: "tool", content: "Sunny", tool_call_id: "a" },
    { role: "tool", content: "Error: the call failed", tool_call_id: "b" },
  ]);
});

test("an edited result is a branch that has the other results too", () => {
  const [conversation, id] = called();
  const results = CALLS.map((call) => ({ call, content: `of ${call.id}`, isError: false }));
  const [answered, last] = addResults(conversation, id, results);
  const [whole] = add(answered, last.id, "assistant", "Fine.");
  const first = branch(whole)[2]!;
  const [edited] = editResult(whole, first, "Rain");

  expect(branch(edited).slice(2).map(sent)).toEqual([
    { role: "tool", content: "Rain", tool_call_id: "a" },
    { role: "tool", content: "of b", tool_call_id: "b" },
  ]);
  expect(siblings(edited, first)).toHaveLength(2);
});

test("the example is a list of tools", () => {
  expect(readTools(EXAMPLE)).toMatchObject({ names: ["get_weather"] });
});

test.each([
  ['[{"type": "function",\n  "function": {"name": "a",,}}]', "not JSON: property name expected", 2, 28],
  ["[1, 2", "not JSON: close bracket expected", 1, 6],
  ["[{}] // more", "not JSON: invalid comment token", 1, 6],
  ["{}", "must be a list of tools, in [ ]", 1, 1],
  ['[\n {"type": "tool"}]', '`tools[0].type` must be "function"', 2, 11],
  ['[{"type": "function"}]', "`tools[0].function` must be an object with a name", 1, 2],
  ['[{"type": "function", "function": {"name": "a b"}}]', "`tools[0].function.name` must be up to 64", 1, 44],
  ['[{"type": "function", "function": {"name": "a", "parameters": []}}]', "`tools[0].function.parameters` must be", 1, 63],
  [
    '[{"type": "function", "function": {"name": "a"}},\n{"type": "function", "function": {"name": "a"}}]',
    "`tools[1].function.name` is another tool's too",
    2,
    43,
  ],
])("what is no list of tools is an error with its place", (text, message, line, column) => {
  const { trouble } = readTools(text) as { trouble: { message: string; place: object } };
  expect(trouble.message).toContain(message);
  expect(trouble.place).toMatchObject({ line, column });
});

test.each([
  [{ role: "assistant", content: "", parent: "root", calls: [{ id: "a" }] }, "`messages.m.calls`"],
  [{ role: "tool", content: "", parent: "root" }, "`messages.m.answered.callId`"],
])("calls and results that are none are refused with their place", (message, place) => {
  expect(() => readConversation({ title: "a", system: "", messages: { m: message }, chosen: {} })).toThrow(place);
});
