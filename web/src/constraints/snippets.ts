// The request that the page would send, for a shell and for two Python clients.

export type Body = Record<string, unknown>;

export const SNIPPETS = {
  curl: "curl",
  openai: "openai",
  huggingface_hub: "huggingface_hub",
} as const;
export type SnippetKind = keyof typeof SNIPPETS;

// What the openai package takes by name; all else goes into `extra_body`.
const OPENAI_NAMES = new Set([
  ...["model", "messages", "temperature", "top_p", "presence_penalty", "frequency_penalty", "max_tokens", "seed"],
  ...["stop", "logit_bias", "tools", "tool_choice", "parallel_tool_calls"],
]);
const HUB_NAMES = new Set([...OPENAI_NAMES].filter((name) => name !== "logit_bias" && name !== "parallel_tool_calls"));

export function snippet(kind: SnippetKind, base: string, body: Body): string {
  if (kind === "curl") return curl(base, body);
  return kind === "openai" ? openai(base, body) : hub(base, body);
}

function curl(base: string, body: Body): string {
  const json = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  return `curl ${base}v1/chat/completions -H 'Content-Type: application/json' -d '${json}'\n`;
}

function openai(base: string, body: Body): string {
  return `from openai import OpenAI

client = OpenAI(base_url="${base}v1", api_key="none")
answer = client.chat.completions.create(
${keywords(body, OPENAI_NAMES, "extra_body")})
print(answer.choices[0].message.content)
`;
}

function hub(base: string, body: Body): string {
  return `from huggingface_hub import InferenceClient

client = InferenceClient(base_url="${base}v1")
answer = client.chat.completions.create(
${keywords(body, HUB_NAMES, "extra_body")})
print(answer.choices[0].message.content)
`;
}

function keywords(body: Body, names: Set<string>, extra: string): string {
  const own = Object.entries(body).filter(([name, value]) => names.has(name) && value !== undefined);
  const others = Object.entries(body).filter(([name, value]) => !names.has(name) && value !== undefined);
  const lines = own.map(([name, value]) => `    ${name}=${python(value, 1)},\n`);
  if (others.length > 0) lines.push(`    ${extra}=${python(Object.fromEntries(others), 1)},\n`);
  return lines.join("");
}

/** A value of JSON as a literal of Python. */
export function python(value: unknown, depth: number): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return pythonText(value);
  if (typeof value !== "object") return String(value);
  const items = Array.isArray(value)
    ? value.map((item) => python(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${pythonText(name)}: ${python(item, depth + 1)}`);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const short = left + items.join(", ") + right;
  if (short.length + 4 * depth < 80 && !short.includes("\n")) return short;
  const indent = "    ".repeat(depth + 1);
  return `${left}\n${items.map((item) => `${indent}${item},\n`).join("")}${"    ".repeat(depth)}${right}`;
}

function pythonText(text: string): string {
  // JSON's escapes are Python's, but for characters beyond the first plane, which need none.
  return JSON.stringify(text);
}
