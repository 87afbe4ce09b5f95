// Writes what zod 4 makes of its types: `npm install zod && node zod_schemas.mjs > zod.json`.
import { z } from "zod";
const S = {
  user: z.object({ id: z.uuid(), email: z.email(), name: z.string().min(1).max(40), age: z.number().int().min(0).max(150).optional() }),
  token: z.object({ jwt: z.jwt().optional(), data: z.base64(), url: z.url() }),
  phone: z.object({ phone: z.e164(), code: z.string().length(4) }),
  cuid: z.object({ a: z.cuid(), b: z.cuid2(), c: z.ulid(), d: z.nanoid() }),
  starts: z.object({ ref: z.string().startsWith("ORD-"), end: z.string().endsWith(".pdf"), inc: z.string().includes("@") }),
  union: z.discriminatedUnion("type", [z.object({ type: z.literal("circle"), r: z.number().positive() }), z.object({ type: z.literal("square"), side: z.number().nonnegative() })]),
  nullable: z.object({ a: z.string().nullable(), b: z.number().nullish() }),
  enums: z.object({ level: z.enum(["low", "mid", "high"]), kind: z.literal(["a", 1, null]) }),
  tuple: z.object({ point: z.tuple([z.number(), z.number()]), rest: z.tuple([z.string()]).rest(z.int()) }),
  record: z.record(z.string(), z.number()),
  recordEnum: z.record(z.enum(["a", "b"]), z.boolean()),
  arr: z.array(z.object({ q: z.string(), a: z.array(z.string()).min(1).max(4) })).min(1).max(3),
  dates: z.object({ d: z.iso.date(), t: z.iso.time(), dt: z.iso.datetime(), dur: z.iso.duration() }),
  ips: z.object({ four: z.ipv4(), six: z.ipv6(), block: z.cidrv4() }),
  multiple: z.object({ n: z.number().multipleOf(0.5).min(0).max(10), i: z.int32() }),
  defaults: z.object({ page: z.number().int().default(1), q: z.string().default("x") }),
  described: z.object({ title: z.string().describe("The title").meta({ examples: ["x"], deprecated: true }) }).meta({ id: "Thing", title: "Thing" }),
  tree: (() => { const T = z.object({ name: z.string().max(8), get children() { return z.array(T).max(2); } }); return T; })(),
  strict: z.strictObject({ a: z.boolean() }),
  loose: z.looseObject({ a: z.boolean() }),
  emoji: z.object({ e: z.emoji() }),
  regex: z.object({ sku: z.string().regex(/^[A-Z]{3}-\d{4}$/i) }),
  lower: z.object({ s: z.string().lowercase(), u: z.string().uppercase() }),
  inter: z.intersection(z.object({ a: z.string() }), z.object({ b: z.number() })),
};
const out = {};
for (const [k, v] of Object.entries(S)) { try { out["zod/" + k] = z.toJSONSchema(v); } catch (e) { console.error(k, e.message); } }
for (const k of ["user", "nullable", "tuple"]) out["zod-openapi/" + k] = z.toJSONSchema(S[k], { target: "openapi-3.0" });
for (const k of ["tuple", "union"]) out["zod-draft7/" + k] = z.toJSONSchema(S[k], { target: "draft-7" });
console.log(JSON.stringify(out, null, 1));
