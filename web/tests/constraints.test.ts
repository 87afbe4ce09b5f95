import { expect, test } from "vitest";
import { judgementOf } from "../src/constraints/judgement";
import { placeOf, reasonOf } from "../src/constraints/place";
import { python, snippet } from "../src/constraints/snippets";

test("a position is a line and a column, in characters", () => {
  expect(placeOf("ab\n😀cd", 5, undefined)).toEqual({ pointer: null, line: 2, column: 3, source: "😀cd" });
  expect(placeOf("{}", undefined, "/contains")?.pointer).toBe("/contains");
  expect(placeOf("ab", undefined, undefined)).toBeNull();
});

test("the reason of a refusal stands alone", () => {
  expect(reasonOf("Input validation error: `grammar`: position 9: this `[` is never closed\n  [a\n  ^")).toBe("this `[` is never closed");
});

test("values of JSON are literals of Python", () => {
  expect(python({ a: [true, null, 1.5, 'x"\n'] }, 0)).toBe('{"a": [True, None, 1.5, "x\\"\\n"]}');
});

test("what a client does not know by name goes into its extra body", () => {
  const code = snippet("openai", "http://here/", { model: "m", messages: [], top_k: 5 });

  expect(code).toContain('    model="m",\n    messages=[],\n    extra_body={"top_k": 5},\n)');
});

test("a quote does not end curl's argument", () => {
  expect(snippet("curl", "http://here/", { prompt: "it's" })).toContain("it'\\''s");
});

test.each([
  [{ accepted: true, position: null, expected: [] }, { state: "satisfied" }],
  [{ accepted: false, position: 4, expected: ["a digit"] }, { state: "unfinished", expected: ["a digit"] }],
  [{ accepted: false, position: 2, expected: ["'c'"] }, { state: "wrong", at: 3, character: "c", expected: ["'c'"] }],
  [{ accepted: false, position: 4, expected: [], error: "too few items" }, { state: "broken", failure: "too few items" }],
])("a beginning is no mistake, and a mistake has its place", (result, judgement) => {
  expect(judgementOf({ text: "a😀c-", ...result })).toEqual(judgement);
  expect(judgementOf(undefined)).toBeNull();
});
