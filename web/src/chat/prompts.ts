// What a newcomer may ask the served model: what its card suggests, or what most models answer.
import { computed } from "@preact/signals";
import { isObject } from "../api/errors";
import { info } from "../api/model";

export interface Prompt {
  title: string;
  text: string;
}

const MAX_SHOWN = 4;
// A model of a hundred million parameters answers them, and comes to an end.
const GENERAL: readonly Prompt[] = [
  { title: "A fact", text: "What is the capital of Japan?" },
  { title: "An explanation", text: "What is photosynthesis?" },
  { title: "A poem", text: "Write a haiku about the sea." },
  { title: "A list", text: "Name three fruits." },
];

/** None before it is known what is served. */
export const prompts = computed<readonly Prompt[]>(() => {
  if (Object.keys(info.value).length === 0) return [];
  const known = info.value.example_prompts;
  const own = (Array.isArray(known) ? known : [])
    .filter(isObject)
    .map(({ title, text }) => ({ title: typeof title === "string" ? title : "", text: String(text) }));
  return (own.length > 0 ? own : GENERAL).slice(0, MAX_SHOWN);
});
