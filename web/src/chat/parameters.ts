// The sampling parameters of a request: what they are called, their defaults, and what was set.
import { effect, signal } from "@preact/signals";
import { isObject } from "../api/errors";
import { info } from "../api/model";

export interface Parameter {
  name: string;
  label: string;
  /** What holds where nothing is set. */
  fallback: string;
  help: string;
  kind: "number" | "integer" | "list" | "switch" | "json" | "choice";
  /** Of a choice. */
  options?: readonly string[];
  min?: number;
  max?: number;
  step?: number;
}

// Its members are fields themselves.
const OTHER = "other";

export const PARAMETERS: readonly Parameter[] = [
  { name: "temperature", label: "Temperature", kind: "number", fallback: "1", min: 0, step: 0.1, help: "0 takes the most probable token" },
  { name: "top_p", label: "Top p", kind: "number", fallback: "1", min: 0, max: 1, step: 0.05, help: "the most probable tokens that make up this share" },
  { name: "top_k", label: "Top k", kind: "integer", fallback: "all", min: 1, help: "as many of the most probable tokens" },
  { name: "min_p", label: "Min p", kind: "number", fallback: "0", min: 0, max: 1, step: 0.05, help: "no token below this share of the best one's probability" },
  { name: "repetition_penalty", label: "Repetition penalty", kind: "number", fallback: "1", min: 0.01, step: 0.05, help: "over prompt and answer; 1 is none" },
  { name: "presence_penalty", label: "Presence penalty", kind: "number", fallback: "0", min: -2, max: 2, step: 0.1, help: "for tokens that the answer has" },
  { name: "frequency_penalty", label: "Frequency penalty", kind: "number", fallback: "0", min: -2, max: 2, step: 0.1, help: "for each time that it has them" },
  { name: "max_tokens", label: "Max tokens", kind: "integer", fallback: "what the context leaves", min: 1, help: "of the answer" },
  { name: "min_tokens", label: "Min tokens", kind: "integer", fallback: "0", min: 0, help: "of the answer" },
  { name: "seed", label: "Seed", kind: "integer", fallback: "random", help: "the same one gives the same answer" },
  { name: "stop", label: "Stop", kind: "list", fallback: "none", help: "texts that end the answer, one a line" },
  { name: "ignore_eos", label: "Ignore the end token", kind: "switch", fallback: "off", help: "go on to max tokens" },
  { name: "max_time", label: "Max time", kind: "number", fallback: "none", min: 0.1, step: 1, help: "seconds after which the answer ends with what there is" },
  { name: "logit_bias", label: "Logit bias", kind: "json", fallback: "none", help: 'by token id, like {"50": -5}' },
  { name: "reasoning_effort", label: "Reasoning effort", kind: "choice", options: ["none", "minimal", "low", "medium", "high"], fallback: "the model's", help: "of a model that thinks" },
  { name: "thinking_token_budget", label: "Thinking budget", kind: "integer", fallback: "none", min: -1, help: "tokens, after which the thought is closed" },
  { name: OTHER, label: "Other fields", kind: "json", fallback: "none", help: 'any of the API, like {"bad_words": ["alas"]}' },
];

const NAME = "tandem.parameters";

function load(): Record<string, string> {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    return typeof stored === "object" && stored !== null ? (stored as Record<string, string>) : {};
  } catch {
    return {};
  }
}

/** What holds where nothing is set: the served model's own default, if it has one. */
export function fallbackOf({ name, fallback }: Parameter): string {
  const own = info.value.sampling_defaults;
  return isObject(own) && own[name] !== undefined ? `${String(own[name])}, the model's` : fallback;
}

/** What was set, as it was typed. */
export const typed = signal<Record<string, string>>(load());
effect(() => localStorage.setItem(NAME, JSON.stringify(typed.value)));

export function set(name: string, text: string): void {
  const { [name]: _, ...others } = typed.value;
  typed.value = text === "" ? others : { ...others, [name]: text };
}

/** What is wrong with a typed value; null: nothing. The server has the last word. */
export function troubleOf(parameter: Parameter, text: string): string | null {
  if (text === "") return null;
  if (parameter.kind === "json") {
    try {
      if (!isObject(JSON.parse(text))) return "must be a JSON object";
    } catch {
      return "must be JSON";
    }
  }
  if (parameter.kind !== "number" && parameter.kind !== "integer") return null;
  const value = Number(text);
  if (!Number.isFinite(value)) return "must be a number";
  if (parameter.kind === "integer" && !/^-?\d+$/.test(text.trim())) return "must be a whole number";
  if (parameter.min !== undefined && value < parameter.min) return `must be at least ${parameter.min}`;
  if (parameter.max !== undefined && value > parameter.max) return `must be at most ${parameter.max}`;
  return null;
}

/** The fields of a request; a value that is wrong is left to the server's error. */
export function fields(): Record<string, unknown> {
  const found: Record<string, unknown> = {};
  for (const parameter of PARAMETERS) {
    const text = typed.value[parameter.name];
    if (text === undefined) continue;
    const value = valueOf(parameter, text);
    if (parameter.name === OTHER && isObject(value)) Object.assign(found, value);
    else found[parameter.name] = value;
  }
  return found;
}

function valueOf(parameter: Parameter, text: string): unknown {
  if (parameter.kind === "switch") return text === "on";
  if (parameter.kind === "choice") return text;
  if (parameter.kind === "list") return text.split("\n").filter((line) => line !== "");
  if (troubleOf(parameter, text) !== null) return text;
  return parameter.kind === "json" ? JSON.parse(text) : Number(text);
}
