// What came of an answer so far, read from the chunks of its stream.
import { isObject } from "../api/errors";
import type { Call } from "../tools/call";
import { isWhole, withPieces } from "../tools/call";
import type { Token } from "../tokens/token";
import { chatTokens } from "../tokens/token";
import type { Thought } from "./conversation";

/** `now` is in milliseconds. */
export class Reply {
  text = "";
  thought: Thought | undefined;
  tokens: Token[] = [];
  /** Absent: none came. */
  calls: Call[] | undefined;
  private reason: string | null = null;
  private numTokens: number | null = null;
  private satisfied: boolean | null = null;
  private begunMs: number | null = null;

  constructor(private readonly now: () => number = () => performance.now()) {}

  push(chunk: unknown): void {
    if (!isObject(chunk)) return;
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
    this.numTokens = Number(usage.completion_tokens);
    const details = usage.completion_tokens_details;
    if (this.thought !== undefined && isObject(details)) {
      this.thought = { ...this.thought, numTokens: Number(details.reasoning_tokens) };
    }
  }

  /** Takes back a call of which a stop or a broken line left a beginning alone. */
  dropBeginnings(): void {
    this.calls = this.calls?.filter(isWhole);
  }

  ending(elapsedMs: number): string {
    const parts = [this.reason ?? "the connection ended early"];
    if (this.numTokens !== null) {
      parts.push(`${this.numTokens} tokens`, `${(1000 * this.numTokens / elapsedMs).toFixed(1)} tokens/s`);
    }
    if (this.satisfied !== null) parts.push(this.satisfied ? "constraint satisfied" : "constraint not satisfied");
    return parts.join(" · ");
  }
}
