// One answer at a time: asked for, streamed into its message, stopped.
import { signal } from "@preact/signals";
import { sentence } from "../api/errors";
import { models, servedName } from "../api/model";
import { postForEvents } from "../api/server";
import { constraintField } from "../constraints/constraint";
import { takeAttached } from "../files/attached";
import { toolFields, toolTrouble } from "../tools/toolSettings";
import type { Token } from "../tokens/token";
import type { Conversation, Message } from "./conversation";
import { add, before, branch, change, EDITED, ROOT, sent } from "./conversation";
import { fields } from "./parameters";
import { Reply } from "./reply";
import { conversationOf, current, replace, tokensOf } from "./store";
import { follows } from "./view";

export const NUM_RIVALS = 5;

/** The message that is being written; null: none. */
export const writing = signal<string | null>(null);

/** How far it is. */
export const progress = signal("");

let stopper: AbortController | null = null;

export function stop(): void {
  stopper?.abort();
}

function maxLenOf(name: string | undefined): number | null {
  return models.value.find(({ id }) => id === name)?.maxLen ?? null;
}

/** The body of the request for the answer behind these messages. */
export function chatBody(conversation: Conversation, messages: Message[]): Record<string, unknown> {
  const system = conversation.system.trim();
  return {
    model: servedName(),
    messages: [
      ...(system === "" ? [] : [{ role: "system", content: system }]),
      ...messages.map(sent),
    ],
    ...fields(),
    ...constraintField(),
    ...toolFields(messages.at(-1)?.role !== "user"),
  };
}

/** Sends a message, and the attached files, behind those that are shown. */
export function ask(text: string): void {
  const parent = branch(current.value).at(-1)?.id ?? ROOT;
  const [changed, message] = add(current.value, parent, "user", text, takeAttached());
  void answer(changed, message.id);
}

/** A new answer behind `parent`, beside those that it has; the page goes to it. */
export async function answer(conversation: Conversation, parent: string): Promise<void> {
  const [changed, message] = add(conversation, parent, "assistant", "");
  replace(changed);
  follows.value = true;
  const trouble = toolTrouble.value;
  if (trouble !== null) {
    const where = trouble.place === null ? "" : `line ${trouble.place.line}, column ${trouble.place.column}: `;
    replace(change(changed, message.id, { error: `The tools in the settings: ${where}${trouble.message}` }));
    return;
  }
  const body = streamed(chatBody(changed, before(changed, message.id)));
  await writeInto(changed.id, message.id, body);
}

/** Goes on where an answer was cut, in its place. */
export async function goOn(conversation: Conversation, message: Message): Promise<void> {
  const known = tokensOf.value[message.id] ?? [];
  const cut = change(conversation, message.id, { end: null, error: null });
  replace(cut);
  const body = streamed(chatBody(cut, [...before(cut, message.id), message]));
  await writeInto(cut.id, message.id, body, new Reply(undefined, message), known);
}

/** Whether an answer may go on: it has an end that is not its own, and nothing that shapes it as a whole. */
export function canGoOn({ role, content, calls, end, error }: Message): boolean {
  const isCut = error !== null || /^(length|deadline|stopped|the connection)/.test(end ?? "") || end === EDITED;
  return role === "assistant" && isCut && content.trim() !== "" && !calls?.length && Object.keys(constraintField()).length === 0;
}

function streamed(body: Record<string, unknown>): Record<string, unknown> {
  return { ...body, stream: true, stream_options: { include_usage: true }, logprobs: true, top_logprobs: NUM_RIVALS };
}

async function writeInto(
  conversationId: string,
  id: string,
  body: Record<string, unknown>,
  stream = new Reply(),
  known: readonly Token[] = [],
): Promise<void> {
  const show = (fields: Partial<Message> = {}): void => {
    const conversation = conversationOf(conversationId);
    const thought = stream.thought === undefined ? {} : { thought: stream.thought };
    const calls = stream.calls === undefined ? {} : { calls: stream.calls };
    const message = { content: stream.text, ...thought, ...calls, ...fields };
    if (conversation !== undefined) replace(change(conversation, id, message));
    progress.value = stream.progress();
    tokensOf.value = { ...tokensOf.value, [id]: [...known, ...stream.tokens] };
  };
  const controller = new AbortController();
  stopper = controller;
  writing.value = id;
  progress.value = "";
  let isDue = false;
  try {
    for await (const chunk of postForEvents("v1/chat/completions", body, controller.signal)) {
      stream.push(chunk);
      if (isDue) continue;
      // At most once a frame, however fast the tokens come.
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        if (writing.value === id) show();
      });
    }
    const isConstrained = body.tools === undefined || body.response_format !== undefined;
    show({ end: stream.ending(maxLenOf(servedName()), isConstrained) });
  } catch (error) {
    stream.dropBeginnings();
    if (controller.signal.aborted) show({ end: "stopped" });
    else show({ error: sentence(error) });
  } finally {
    if (writing.value === id) writing.value = null;
    if (stopper === controller) stopper = null;
  }
}
