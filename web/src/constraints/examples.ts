// Constraints to begin with.
import type { Constraint } from "./constraint";

export interface Example {
  name: string;
  constraint: Pick<Constraint, "kind" | "text">;
}

const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 40 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    city: { type: "string", maxLength: 40 },
  },
  required: ["name", "age", "city"],
  additionalProperties: false,
};
const SUMS = `start: sum
sum: product (("+" | "-") product)*
product: number (("*" | "/") number)*
number: /[1-9][0-9]{0,3}/`;
const STEPS = `root ::= step step step
step ::= "- " [A-Z] [a-z ]{3,40} ".\\n"`;

export const EXAMPLES: readonly Example[] = [
  { name: "A person, as JSON", constraint: { kind: "json", text: JSON.stringify(PERSON, null, 2) } },
  { name: "A date", constraint: { kind: "regex", text: "20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])" } },
  { name: "One of three", constraint: { kind: "choice", text: "positive\nneutral\nnegative" } },
  { name: "A sum", constraint: { kind: "lark", text: SUMS } },
  { name: "Three steps", constraint: { kind: "gbnf", text: STEPS } },
  { name: "One short sentence", constraint: { kind: "where", text: 'len(TEXT) < 120 and STOPS_AT(TEXT, ".")' } },
];
