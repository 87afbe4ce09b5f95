// One answer at a time: asked for, streamed into its message, stopped.
import { signal } from "@preact/signals";
import { isObject, sentence } from "../api/errors";
import { servedName } from "../api/model";
import { postForEvents } from "../api/server";
import { constraintField } from "../constraints/constraint";
import type { Token } from "../tokens/token";
import { chatTokens } from "../tokens/token";
import type { Conversation, Message } from "./conversation";
import { add, before, change } from "./conversation";
import { fields } from "./parameters";
import { conversationOf, replace, tokensOf } from "./store";

export const NUM_RIVALS = 5;

/** The message that is being written; null: none. */
export const writing = signal<string | null>(null);

let stopper: AbortController | null = null;

export function stop(): void {
  stopper?.abort();
}

/** The body of the request for the answer behind these messages. */
export function chatBody(conversation: Conversation, messages: Message[]): Record<string, unknown> {
  const system = conversation.system.trim();
  return {
    model: servedName(),
    messages: [
      ...(system === "" ? [] : [{ role: "system", content: system }]),
      ...messages.map(({ role, content }) => ({ role, content })),
    ],
    ...fields(),
    ...constraintField(),
  };
}

/** A new answer behind `parent`, beside those that it has. */
export async function answer(conversation: Conversation, parent: string): Promise<void> {
  const [changed, message] = add(conversation, parent, "assistant", "");
  replace(changed);
  const body = {
    ...chatBody(changed, before(changed, message.id)),
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: NUM_RIVALS,
  };
  await writeInto(changed.id, message.id, body);
}

async function writeInto(conversationId: string, id: string, body: Record<string, unknown>): Promise<void> {
  const stream = new Answer();
  const show = (fields: Partial<Message>): void => {
    const conversation = conversationOf(conversationId);
    if (conversation !== undefined) replace(change(conversation, id, fields));
    tokensOf.value = { ...tokensOf.value, [id]: [...stream.tokens] };
  };
  const begun = performance.now();
  const controller = new AbortController();
  stopper = controller;
  writing.value = id;
  let isDue = false;
  try {
    for await (const chunk of postForEvents("v1/chat/completions", body, controller.signal)) {
      stream.push(chunk);
      if (isDue) continue;
      // At most once a frame, however fast the tokens come.
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        if (writing.value === id) show({ content: stream.text });
      });
    }
    show({ content: stream.text, end: stream.ending(performance.now() - begun) });
  } catch (error) {
    if (controller.signal.aborted) show({ content: stream.text, end: "stopped" });
    else show({ content: stream.text, error: sentence(error) });
  } finally {
    if (writing.value === id) writing.value = null;
    if (stopper === controller) stopper = null;
  }
}

/** What came of an answer so far. */
class Answer {
  text = "";
  tokens: Token[] = [];
  private reason: string | null = null;
  private numTokens: number | null = null;
  private satisfied: boolean | null = null;

  push(chunk: unknown): void {
    if (!isObject(chunk)) return;
    if (isObject(chunk.usage)) this.numTokens = Number(chunk.usage.completion_tokens);
    const choice: unknown = Array.isArray(chunk.choices) ? chunk.choices[0] : undefined;
    if (!isObject(choice)) return;
    if (isObject(choice.delta) && typeof choice.delta.content === "string") this.text += choice.delta.content;
    this.tokens.push(...chatTokens(choice.logprobs));
    if (typeof choice.finish_reason === "string") this.reason = choice.finish_reason;
    if (typeof choice.constraint_satisfied === "boolean") this.satisfied = choice.constraint_satisfied;
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
