// What came of an answer so far, read from the chunks of its stream.
import { isObject } from "../api/errors";
import type { Call } from "../tools/call";
import { isWhole, withPieces } from "../tools/call";
import type { Token } from "../tokens/token";
import { chatTokens } from "../tokens/token";
import { fixed, readable } from "../ui/numbers";
import type { Thought } from "./conversation";

/** Begins with what an answer that was cut has. `now` is in milliseconds. */
export class Reply {
  text: string;
  thought: Thought | undefined;
  tokens: Token[] = [];
  /** Absent: none came. */
  calls: Call[] | undefined;
  private reason: string | null = null;
  private usage: Record<string, unknown> | null = null;
  private satisfied: boolean | null = null;
  private readonly askedMs: number;
  private begunMs: number | null = null;
  private firstMs: number | null = null;
  private endedMs = 0;

  constructor(
    private readonly now: () => number = () => performance.now(),
    cut: { content: string; thought?: Thought } = { content: "" },
  ) {
    this.askedMs = now();
    this.text = cut.content;
    this.thought = cut.thought;
  }

  push(chunk: unknown): void {
    if (!isObject(chunk)) return;
    this.endedMs = this.now();
    if (isObject(chunk.usage)) this.count(chunk.usage);
    const choice: unknown = Array.isArray(chunk.choices) ? chunk.choices[0] : undefined;
    if (!isObject(choice)) return;
    if (isObject(choice.delta)) this.add(choice.delta);
    this.tokens.push(...chatTokens(choice.logprobs));
    if (typeof choice.finish_reason === "string") {
      this.reason = choice.finish_reason;
      this.endThought();
    }
    if (typeof choice.constraint_satisfied === "boolean") this.satisfied = choice.constraint_satisfied;
  }

  /** The thought ends where something is said. */
  private add({ reasoning_content: thought, content, tool_calls: calls }: Record<string, unknown>): void {
    this.begunMs ??= this.now();
    if (thought || content || calls !== undefined) this.firstMs ??= this.now();
    if (typeof thought === "string" && thought !== "") {
      const { text, seconds } = this.thought ?? { text: "", seconds: null };
      this.thought = { text: text + thought, seconds, numTokens: null };
    }
    if (typeof content === "string" && content !== "") {
      this.text += content;
      this.endThought();
    }
    if (calls !== undefined) {
      this.calls = withPieces(this.calls ?? [], calls);
      this.endThought();
    }
  }

  private endThought(): void {
    if (this.thought === undefined || this.thought.seconds !== null || this.begunMs === null) return;
    this.thought = { ...this.thought, seconds: (this.now() - this.begunMs) / 1000 };
  }

  private count(usage: Record<string, unknown>): void {
    this.usage = usage;
    const details = usage.completion_tokens_details;
    if (this.thought?.numTokens === null && isObject(details)) {
      this.thought = { ...this.thought, numTokens: Number(details.reasoning_tokens) };
    }
  }

  /** Takes back a call of which a stop or a broken line left a beginning alone. */
  dropBeginnings(): void {
    this.calls = this.calls?.filter(isWhole);
  }

  /** How many tokens there are so far, and how fast they come. */
  progress(): string {
    if (this.firstMs === null) return "";
    return [`${readable(this.tokens.length)} tokens`, ...speed(this.tokens.length, this.endedMs - this.firstMs)].join(" · ");
  }

  /**
   * How it ended, and what it took: tokens, of the answer and of its prompt, and time. `isConstrained`:
   * by a constraint that the user wrote; the grammar of tools is judged as well.
   */
  ending(maxLen: number | null, isConstrained: boolean): string {
    const parts = [this.reason ?? "the connection ended early"];
    if (this.usage !== null) parts.push(...this.figures(this.usage, maxLen));
    if (isConstrained && this.satisfied !== null) parts.push(this.satisfied ? "constraint satisfied" : "constraint not satisfied");
    return parts.join(" · ");
  }

  private figures(usage: Record<string, unknown>, maxLen: number | null): string[] {
    const [numTokens, promptLen] = [Number(usage.completion_tokens), Number(usage.prompt_tokens)];
    const details = usage.prompt_tokens_details;
    const numCached = isObject(details) ? Number(details.cached_tokens) : 0;
    const firstMs = this.firstMs ?? this.endedMs;
    return [
      `${readable(numTokens)} tokens`,
      ...speed(numTokens, this.endedMs - firstMs),
      `first after ${fixed((firstMs - this.askedMs) / 1000, 2)} s`,
      `prompt ${readable(promptLen)}${numCached > 0 ? ` (${readable(numCached)} cached)` : ""}`,
      ...(maxLen === null ? [] : [`context ${readable(promptLen + numTokens)} of ${readable(maxLen)}`]),
    ];
  }
}

/** Of the tokens behind the first one. */
function speed(numTokens: number, ms: number): string[] {
  return numTokens > 1 && ms > 0 ? [`${fixed((1000 * (numTokens - 1)) / ms, 1)} tokens/s`] : [];
}
