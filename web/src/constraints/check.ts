// What the server says of a constraint, before anything is generated under it.
import { computed, effect, signal } from "@preact/signals";
import { isObject, ServerError } from "../api/errors";
import { servedName } from "../api/model";
import { postJson } from "../api/server";
import type { Constraint } from "./constraint";
import { constraint, grammarOf } from "./constraint";
import type { Judgement } from "./judgement";
import { judgementOf } from "./judgement";
import type { Place } from "./place";
import { placeOf, reasonOf } from "./place";

const DELAY_MS = 400;

export type Verdict =
  | { state: "none" }
  | { state: "waiting" }
  | { state: "good"; shortest: string | null; minTokens: number | null; notEnforced: string[]; text: Judgement | null }
  | { state: "bad"; message: string; place: Place | null; canBeLenient: boolean }
  | { state: "unknown"; message: string };

export const verdict = signal<Verdict>({ state: "none" });
/** A text to try. */
export const tried = signal("");

const question = computed(() => JSON.stringify([grammarOf(constraint.value), tried.value]));
let timer: ReturnType<typeof setTimeout> | undefined;
let controller: AbortController | null = null;

/** Checks each constraint a moment after it was last typed at; the last question alone is answered. */
export function watch(): () => void {
  return effect(() => {
    const asked = question.value;
    clearTimeout(timer);
    controller?.abort();
    if (asked.startsWith("[null")) {
      verdict.value = { state: "none" };
      return;
    }
    verdict.value = { state: "waiting" };
    timer = setTimeout(() => void check(), DELAY_MS);
  });
}

async function check(): Promise<void> {
  const grammar = grammarOf(constraint.value);
  const own = new AbortController();
  controller = own;
  try {
    const texts = tried.value === "" ? [] : [tried.value];
    const answer = await postJson("constraints/check", { model: servedName(), grammar, texts }, own.signal);
    verdict.value = good(answer);
  } catch (error) {
    if (!own.signal.aborted) verdict.value = bad(error, constraint.value);
  }
}

function good(answer: unknown): Verdict {
  const fields = isObject(answer) ? answer : {};
  return {
    state: "good",
    shortest: typeof fields.shortest === "string" ? fields.shortest : null,
    minTokens: typeof fields.shortest_tokens === "number" ? fields.shortest_tokens : null,
    notEnforced: Array.isArray(fields.not_enforced) ? fields.not_enforced.map(String) : [],
    text: judgementOf(Array.isArray(fields.results) ? fields.results[0] : null),
  };
}

function bad(error: unknown, { text, kind, lenient }: Constraint): Verdict {
  if (!(error instanceof ServerError)) return { state: "unknown", message: "The server does not answer." };
  if (error.status !== 422 && error.status !== 400) return { state: "unknown", message: error.message };
  const { reason, position, pointer } = error.constraint ?? {};
  return {
    state: "bad",
    message: reasonOf(error.message),
    place: placeOf(text, position, pointer),
    canBeLenient: reason === "not_enforced" && kind === "json" && !lenient,
  };
}
