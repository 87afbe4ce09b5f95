// Colours of code: highlight.js, which is loaded with the first block that names its language.
import { signal } from "@preact/signals";
import type { HLJSApi } from "highlight.js";

// Longer code would take longer than a frame while it is written.
const MAX_LEN = 20_000;

/** Null: not loaded yet. */
export const highlighter = signal<HLJSApi | null>(null);
let isAsked = false;

/** HTML whose classes tell the parts of the code; null: its language is not known, or not yet. */
export function highlighted(code: string, language: string): string | null {
  if (language === "" || code.length > MAX_LEN) return null;
  if (highlighter.value === null) void load();
  if (highlighter.value?.getLanguage(language) === undefined) return null;
  return highlighter.value.highlight(code, { language, ignoreIllegals: true }).value;
}

async function load(): Promise<void> {
  if (isAsked) return;
  isAsked = true;
  highlighter.value = (await import("highlight.js/lib/common")).default;
}
