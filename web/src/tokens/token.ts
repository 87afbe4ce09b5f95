// Generated tokens as the page shows them, read from chunks of /v1/chat/completions and /v1/completions.
import { isObject } from "../api/errors";
import { percent } from "../ui/numbers";

export interface Rival {
  text: string;
  logprob: number;
}

/**
 * What a constraint did: `forced`, it left one token; `steered`, the model's most probable token was
 * not among those that it left; `free`, it was. null: there was none.
 */
export type Choice = "free" | "steered" | "forced" | null;

export interface Token {
  text: string;
  /** Of the model alone, before temperature, penalties and constraint; null: it has none. */
  logprob: number | null;
  rivals: Rival[];
  choice: Choice;
}

const CHOICES = new Set(["free", "steered", "forced"]);

function choiceOf(value: unknown): Choice {
  return typeof value === "string" && CHOICES.has(value) ? (value as Choice) : null;
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

/** The tokens of a chat's `logprobs`. */
export function chatTokens(logprobs: unknown): Token[] {
  const content = isObject(logprobs) && Array.isArray(logprobs.content) ? logprobs.content : [];
  return content.filter(isObject).map((entry) => ({
    text: String(entry.token),
    logprob: numberOf(entry.logprob),
    rivals: (Array.isArray(entry.top_logprobs) ? entry.top_logprobs : [])
      .filter(isObject)
      .map((top) => ({ text: String(top.token), logprob: Number(top.logprob) })),
    choice: choiceOf(entry.constraint),
  }));
}

/** The tokens of a completion's `logprobs`, which are parallel lists. */
export function completionTokens(logprobs: unknown): Token[] {
  if (!isObject(logprobs) || !Array.isArray(logprobs.tokens)) return [];
  const column = (name: string): unknown[] => (Array.isArray(logprobs[name]) ? logprobs[name] : []);
  const [numbers, tops, choices] = [column("token_logprobs"), column("top_logprobs"), column("constraint")];
  return logprobs.tokens.map((text, index) => {
    const top = tops[index];
    const rivals = isObject(top)
      ? Object.entries(top).map(([name, logprob]) => ({ text: name, logprob: Number(logprob) }))
      : [];
    rivals.sort((one, other) => other.logprob - one.logprob);
    return { text: String(text), logprob: numberOf(numbers[index]), rivals, choice: choiceOf(choices[index]) };
  });
}

/** A token as one sees it: its spaces and line ends are otherwise none. */
export function visible(text: string): string {
  if (text === "") return "∅";
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll("\r", "␍");
}

/** A probability in per cent. */
export function probability(logprob: number): string {
  const share = Math.exp(logprob);
  if (share > 0 && share < 0.001) return `< ${percent(0.001, 1)}`;
  return percent(share, 1, share > 0 && share < 0.9995 ? 1 : 0);
}
