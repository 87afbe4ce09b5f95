// The constraint of the next answer: its language, its text, and how it is to be read.
import { effect, signal } from "@preact/signals";

export const KINDS = {
  none: "None",
  json: "JSON schema",
  regex: "Regular expression",
  choice: "Choice",
  lark: "Lark grammar",
  gbnf: "GBNF grammar",
  where: "where clause",
} as const;
export type Kind = keyof typeof KINDS;

export interface Constraint {
  kind: Kind;
  text: string;
  lenient: boolean;
  whitespace: "" | "flexible" | "compact" | "spaced";
  onBudget: "" | "finish" | "cut";
}

const NONE: Constraint = { kind: "none", text: "", lenient: false, whitespace: "", onBudget: "" };
const NAME = "tandem.constraint";

function load(): Constraint {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(NAME) ?? "null");
    const found = { ...NONE, ...(stored as Partial<Constraint> | null) };
    return found.kind in KINDS ? found : NONE;
  } catch {
    return NONE;
  }
}

export const constraint = signal<Constraint>(load());
effect(() => localStorage.setItem(NAME, JSON.stringify(constraint.value)));

export function setConstraint(fields: Partial<Constraint>): void {
  constraint.value = { ...constraint.value, ...fields };
}

/** The constraint as the server reads it; null: there is none yet. */
export function grammarOf({ kind, text, lenient, whitespace, onBudget }: Constraint): Record<string, unknown> | null {
  if (kind === "none" || text.trim() === "") return null;
  return {
    type: kind,
    value: valueOf(kind, text),
    ...(lenient && kind === "json" ? { lenient } : {}),
    ...(whitespace !== "" && kind === "json" ? { whitespace } : {}),
    ...(onBudget !== "" ? { on_budget: onBudget } : {}),
  };
}

function valueOf(kind: Kind, text: string): unknown {
  if (kind === "choice") return text.split("\n").filter((line) => line !== "");
  if (kind !== "json") return text;
  try {
    return JSON.parse(text);
  } catch {
    // The server names the place.
    return text;
  }
}

/** The field of a request's body. */
export function constraintField(): Record<string, unknown> {
  const grammar = grammarOf(constraint.value);
  return grammar === null ? {} : { response_format: grammar };
}
