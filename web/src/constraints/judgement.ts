// What the server says of a text that is tried under a constraint.
import { isObject } from "../api/errors";

/** `at`: the first character that cannot stand there, from 1. `expected`: what could. */
export type Judgement =
  | { state: "satisfied" }
  | { state: "unfinished"; expected: string[] }
  | { state: "wrong"; at: number; character: string; expected: string[] }
  | { state: "broken"; failure: string };

/** One of the `results` of /constraints/check; null: it is none. */
export function judgementOf(judged: unknown): Judgement | null {
  if (!isObject(judged)) return null;
  const { accepted, error, expected: legal, position, text } = judged;
  if (accepted === true) return { state: "satisfied" };
  if (typeof error === "string") return { state: "broken", failure: error };
  const expected = Array.isArray(legal) ? legal.map(String) : [];
  // The server counts characters, JavaScript UTF-16.
  const characters = [...String(text)];
  const numLegal = Number(position);
  const character = characters[numLegal];
  // A beginning of which every character is legal is no mistake.
  return character === undefined ? { state: "unfinished", expected } : { state: "wrong", at: numLegal + 1, character, expected };
}
