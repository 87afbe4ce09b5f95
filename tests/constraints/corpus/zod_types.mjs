// Writes what zod makes of its types, a schema a line: `npm install zod zod-to-json-schema`, then
// `node zod_types.mjs > zod.jsonl`. Of zod 4 for each of three targets, as input and as output where
// both differ; of zod 3 by zod-to-json-schema for its targets.
import { z } from "zod";
import { z as z3 } from "zod/v3";
import { zodToJsonSchema } from "zod-to-json-schema";

const address = z.object({ street: z.string().min(1), city: z.string(), zip: z.string().regex(/^\d{5}(-\d{4})?$/) });
const node = z.object({ name: z.string().max(8), get children() { return z.array(node).max(2); } });
const person = z.object({ name: z.string(), get friend() { return person.optional(); } });
const circle = z.object({ type: z.literal("circle"), r: z.number().positive() });
const square = z.object({ type: z.literal("square"), side: z.number().nonnegative() });

// One of each kind of string: the name is the format's.
const strings = {
  email: z.email(), uuid: z.uuid(), uuidv4: z.uuidv4(), uuidv7: z.uuidv7(), guid: z.guid(), url: z.url(), httpUrl: z.httpUrl(),
  hostname: z.hostname(), emoji: z.emoji(), base64: z.base64(), base64url: z.base64url(), hex: z.hex(), jwt: z.jwt(), nanoid: z.nanoid(),
  cuid: z.cuid(), cuid2: z.cuid2(), ulid: z.ulid(), xid: z.xid(), ksuid: z.ksuid(), ipv4: z.ipv4(), ipv6: z.ipv6(), mac: z.mac(),
  cidrv4: z.cidrv4(), cidrv6: z.cidrv6(), e164: z.e164(), date: z.iso.date(), time: z.iso.time(), datetime: z.iso.datetime(),
  datetimeOffset: z.iso.datetime({ offset: true }), datetimeLocal: z.iso.datetime({ local: true }), minutes: z.iso.time({ precision: -1 }),
  duration: z.iso.duration(), sha256: z.hash("sha256"), lowercase: z.string().lowercase(), uppercase: z.string().uppercase(),
  startsWith: z.string().startsWith("ORD-"), endsWith: z.string().endsWith(".pdf"), includes: z.string().includes("@"),
  bounded: z.string().min(2).max(10), exact: z.string().length(4), nonempty: z.string().nonempty(), trimmed: z.string().trim().min(1),
  pattern: z.string().regex(/^[a-z]+$/), patternAnyCase: z.string().regex(/^[A-Z]{3}-\d{4}$/i), twoPatterns: z.string().regex(/^[a-z]/).regex(/\d$/),
  password: z.string().min(8).max(20).regex(/^(?=.*[a-z])(?=.*\d).+$/), template: z.templateLiteral(["id-", z.number()]),
  templateUnits: z.templateLiteral([z.number(), z.enum(["px", "em", "%"])]), stringbool: z.stringbool(), slug: z.string().regex(/^[a-z0-9]+(?:-[a-z0-9]+)*$/),
};
const numbers = {
  number: z.number(), int: z.int(), int32: z.int32(), uint32: z.uint32(), float32: z.float32(), float64: z.float64(), positive: z.number().positive(),
  negative: z.number().negative(), nonnegative: z.number().nonnegative(), between: z.number().min(0).max(1), above: z.number().gt(0).lt(100),
  intBetween: z.number().int().min(1).max(5), multipleOf: z.number().multipleOf(0.5), cents: z.number().multipleOf(0.01).min(0), step: z.int().multipleOf(5),
};
const plain = {
  string: z.string(), boolean: z.boolean(), null: z.null(), any: z.any(), unknown: z.unknown(), literal: z.literal("on"), literals: z.literal(["a", 1, null, true]),
  enum: z.enum(["low", "mid", "high"]), nativeEnum: z.enum({ Low: 1, High: 2 }), exclude: z.enum(["a", "b", "c"]).exclude(["a"]), json: z.json(),
  nullable: z.string().nullable(), nullish: z.number().nullish(), union: z.union([z.string(), z.number()]), unionOfObjects: z.union([circle, square]),
  discriminated: z.discriminatedUnion("type", [circle, square]), xor: z.xor([z.object({ a: z.string() }), z.object({ b: z.string() })]),
  xorPlain: z.xor([z.string(), z.number()]), array: z.array(z.string()), arrayBounded: z.array(z.int()).min(1).max(4), arrayExact: z.array(z.boolean()).length(3),
  arrayOfObjects: z.array(z.object({ q: z.string(), a: z.array(z.string()).min(1) })).nonempty(), tuple: z.tuple([z.number(), z.string()]),
  tupleRest: z.tuple([z.string()]).rest(z.int()), tupleOptional: z.tuple([z.string(), z.number().optional()]), record: z.record(z.string(), z.number()),
  recordOfEnum: z.record(z.enum(["a", "b"]), z.boolean()), partialRecord: z.partialRecord(z.enum(["a", "b"]), z.int()),
  recordOfPattern: z.record(z.string().regex(/^x-/), z.string()), recordOfObjects: z.record(z.string(), z.object({ n: z.int() })),
  readonly: z.array(z.string()).readonly(), brand: z.string().brand("Id"), pipe: z.string().pipe(z.string().max(5)), caught: z.number().catch(0),
};
const objects = {
  user: z.object({ id: z.uuid(), email: z.email(), name: z.string().min(1).max(40), age: z.number().int().min(0).max(150).optional() }),
  address, person, node, strict: z.strictObject({ a: z.boolean() }), loose: z.looseObject({ a: z.boolean() }), catchall: z.object({ a: z.string() }).catchall(z.number()),
  defaults: z.object({ page: z.int().default(1), q: z.string().default("x") }), prefault: z.object({ page: z.int().prefault(1) }), partial: address.partial(), pick: address.pick({ city: true }),
  omit: address.omit({ zip: true }), extend: address.extend({ country: z.string().length(2) }), required: address.partial().required({ city: true }),
  intersection: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })), and: z.looseObject({ a: z.string() }).and(z.looseObject({ b: z.number() })),
  described: z.object({ title: z.string().describe("The title").meta({ examples: ["x"], deprecated: true }) }).meta({ id: "Thing", title: "Thing" }),
  reused: z.object({ home: address, work: address.optional() }), nested: z.object({ a: z.object({ b: z.object({ c: z.array(z.string()) }) }) }),
  event: z.object({ name: z.string(), starts: z.iso.datetime(), ends: z.iso.datetime().optional(), guests: z.array(z.email()).max(5) }),
  shapes: z.object({ shapes: z.array(z.discriminatedUnion("type", [circle, square])) }), setting: z.object({ key: z.string(), value: z.union([z.string(), z.number(), z.boolean(), z.null()]) }),
  steps: z.object({ steps: z.array(z.object({ explanation: z.string(), output: z.string() })), final_answer: z.string() }), keysWithSigns: z.object({ "a-b": z.string(), "c d": z.int(), $id: z.string() }),
  optionalArray: z.object({ tags: z.array(z.string()).optional(), kind: z.literal("k").optional() }), transformed: z.object({ n: z.string().transform((s) => s.length).pipe(z.number()) }),
  passwords: z.object({ login: z.string(), password: z.string().regex(/^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{8,}$/) }), host: z.object({ host: z.hostname(), port: z.int().min(1).max(65535) }),
  timing: z.object({ at: z.iso.date(), length: z.iso.duration() }), empty: z.object({}), set: z.object({ tags: z.array(z.enum(["a", "b", "c"])) }),
  either: z.object({ contact: z.xor([z.object({ mail: z.email() }), z.object({ phone: z.e164() })]) }), lazy: z.object({ next: z.lazy(() => z.string().nullable()) }),
};

const seen = new Set();
const write = (name, schema) => {
  const text = JSON.stringify(schema);
  if (!seen.has(text)) console.log(JSON.stringify({ name, schema }));
  seen.add(text);
};
for (const [name, type] of Object.entries({ ...strings, ...numbers, ...plain, ...objects }))
  for (const target of ["draft-2020-12", "draft-7", "openapi-3.0"])
    for (const io of ["output", "input"])
      write(`zod/${name} ${target} ${io}`, z.toJSONSchema(type, { target, io }));

const old = {
  user: z3.object({ id: z3.string().uuid(), email: z3.string().email(), age: z3.number().int().min(0).optional() }), tuple: z3.tuple([z3.string(), z3.number()]),
  set: z3.set(z3.string()), map: z3.map(z3.string(), z3.number()), record: z3.record(z3.string().min(1), z3.boolean()), nullable: z3.object({ a: z3.string().nullable(), b: z3.number().positive() }),
  union: z3.discriminatedUnion("t", [z3.object({ t: z3.literal("a"), n: z3.number() }), z3.object({ t: z3.literal("b"), s: z3.string().ip() })]),
  intersection: z3.object({ a: z3.string() }).and(z3.object({ b: z3.number() })), dates: z3.object({ at: z3.date(), on: z3.string().datetime() }),
  reused: (() => { const part = z3.object({ n: z3.number().multipleOf(2) }); return z3.object({ a: part, b: part }); })(),
};
for (const [name, type] of Object.entries(old))
  for (const target of ["jsonSchema7", "jsonSchema2019-09", "openApi3", "openAi"])
    write(`zod3/${name} ${target}`, zodToJsonSchema(type, { target }));
