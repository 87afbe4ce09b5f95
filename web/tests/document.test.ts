import { expect, test } from "vitest";
import type { OpenApi } from "../src/reference/document";
import { operationsOf, Schemas } from "../src/reference/document";

const schemas = new Schemas({
  Tree: { properties: { leaves: { items: { $ref: "#/components/schemas/Tree" } }, name: { type: "string" } }, required: ["name"] },
  Name: { type: "string", maxLength: 8 },
});
const tree = { $ref: "#/components/schemas/Tree" };

test.each([
  [{ anyOf: [{ type: "integer", minimum: 1, maximum: 20 }, { type: "null" }] }, "integer ≥ 1 ≤ 20 | null"],
  [{ enum: ["low", "high"] }, '"low" | "high"'],
  [{ items: tree, minItems: 1 }, "array of Tree items ≥ 1"],
  [{ $ref: "#/components/schemas/Name" }, "string length ≤ 8"],
  [{ additionalProperties: { type: "number" } }, "object of number"],
  [{ type: "string", contentSchema: { anyOf: [tree, { const: "[DONE]" }] } }, 'JSON text of Tree | "[DONE]"'],
  [{}, "any"],
])("a type is said in a line: %j", (schema, line) => {
  expect(schemas.typeOf(schema)).toBe(line);
});

test("the objects within a value are found, and not those within them", () => {
  expect(schemas.objectsOf({ anyOf: [{ items: tree }, { type: "null" }, { properties: {} }] })).toEqual([tree, { properties: {} }]);
});

test("an example has what is required, and what the document gives", () => {
  const message = { type: "array", examples: [["Hi"]] };
  const body = { properties: { tree, message, length: { type: "integer", minimum: 100 }, kind: { const: "a" }, seed: {} }, required: ["tree", "message", "length", "kind"] };
  expect(schemas.exampleOf(body)).toEqual({ tree: { name: "Hello" }, message: ["Hi"], length: 100, kind: "a" });
});

test("an operation is a method of a path", () => {
  const each = { tags: [], summary: "", description: "", operationId: "a", responses: {} };
  const document = { paths: { "/a": { get: each, post: each }, "/b": { get: each } } } as unknown as OpenApi;
  expect(operationsOf(document).map(({ method, path }) => `${method} ${path}`)).toEqual(["GET /a", "POST /a", "GET /b"]);
});
