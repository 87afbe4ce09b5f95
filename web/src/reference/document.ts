// The server's OpenAPI document, as far as it goes: what pydantic and the routes write into it.

export interface Schema {
  $ref?: string;
  type?: string | string[];
  title?: string;
  description?: string;
  default?: unknown;
  examples?: unknown[];
  const?: unknown;
  enum?: unknown[];
  anyOf?: Schema[];
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  additionalProperties?: boolean | Schema;
  items?: Schema;
  contentMediaType?: string;
  contentSchema?: Schema;
  pattern?: string;
  [bound: string]: unknown;
}

export interface Parameter {
  name: string;
  in: "path" | "query" | "header";
  required?: boolean;
  description?: string;
  schema: Schema;
}

/** By media type; a stream has the schema of each of its events. */
export type Content = Record<string, { schema?: Schema; itemSchema?: Schema }>;

interface Documented {
  tags: string[];
  summary: string;
  description: string;
  operationId: string;
  parameters?: Parameter[];
  requestBody?: { content: Content };
  responses: Record<string, { description: string; content?: Content }>;
}

export interface Operation extends Documented {
  method: string;
  path: string;
}

export interface OpenApi {
  info: { title: string; version: string; description: string };
  tags: { name: string; description: string }[];
  paths: Record<string, Record<string, Documented>>;
  components: { schemas: Record<string, Schema> };
}

export function operationsOf({ paths }: OpenApi): Operation[] {
  return Object.entries(paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, each]) => ({ ...each, path, method: method.toUpperCase() })));
}

const BOUNDS = {
  minimum: "≥",
  exclusiveMinimum: ">",
  maximum: "≤",
  exclusiveMaximum: "<",
  minLength: "length ≥",
  maxLength: "length ≤",
  minItems: "items ≥",
  maxItems: "items ≤",
  pattern: "like",
} as const;
// For a number that must be given and has no example.
const SOME = 64;

/** Reads schemas of a document. */
export class Schemas {
  constructor(private readonly named: Record<string, Schema>) {}

  nameOf({ $ref }: Schema): string | undefined {
    return $ref?.slice($ref.lastIndexOf("/") + 1);
  }

  resolved(schema: Schema): Schema {
    const name = this.nameOf(schema);
    return name === undefined ? schema : this.resolved(this.named[name] ?? {});
  }

  /** A value's type in a line, with its bounds. */
  typeOf(schema: Schema): string {
    const found = this.resolved(schema);
    if ("const" in found) return JSON.stringify(found.const);
    if (found.enum !== undefined) return found.enum.map((value) => JSON.stringify(value)).join(" | ");
    const choices = choicesOf(found);
    if (choices !== undefined) return [...new Set(choices.map((each) => this.typeOf(each)))].join(" | ");
    if (found.contentSchema !== undefined) return `JSON text of ${this.typeOf(found.contentSchema)}`;
    const bounds = Object.entries(BOUNDS).filter(([name]) => found[name] !== undefined);
    return [this.plainTypeOf(found, this.nameOf(schema)), ...bounds.map(([name, sign]) => `${sign} ${String(found[name])}`)].join(" ");
  }

  private plainTypeOf({ type, properties, items, additionalProperties, contentMediaType }: Schema, name: string | undefined): string {
    if (properties !== undefined) return name ?? "object";
    if (items !== undefined) return `array of ${this.typeOf(items)}`;
    if (typeof additionalProperties === "object") return `object of ${this.typeOf(additionalProperties)}`;
    return contentMediaType ?? (type === undefined ? "any" : [type].flat().join(" | "));
  }

  /** The objects with fields that a value is, or holds. */
  objectsOf(schema: Schema): Schema[] {
    const found = this.resolved(schema);
    if (found.properties !== undefined) return [schema];
    const { items, additionalProperties: others, contentSchema } = found;
    const within = [...(choicesOf(found) ?? []), items, contentSchema, typeof others === "object" ? others : undefined];
    return within.flatMap((each) => (each === undefined ? [] : this.objectsOf(each)));
  }

  /** A small value, with what is required alone. */
  exampleOf(schema: Schema): unknown {
    const found = this.resolved(schema);
    if (found.examples !== undefined) return found.examples[0];
    if ("const" in found) return found.const;
    const first = found.enum?.[0] ?? choicesOf(found)?.[0];
    if (first !== undefined) return found.enum === undefined ? this.exampleOf(first as Schema) : first;
    const { properties, items, minimum = SOME } = found;
    if (properties !== undefined) return Object.fromEntries((found.required ?? []).map((name) => [name, this.exampleOf(properties[name] ?? {})]));
    if (items !== undefined) return [this.exampleOf(items)];
    return { string: "Hello", integer: Math.max(SOME, Number(minimum)), number: 1, boolean: true }[[found.type].flat()[0] ?? ""] ?? {};
  }
}

function choicesOf({ anyOf, oneOf }: Schema): Schema[] | undefined {
  return anyOf ?? oneOf;
}
