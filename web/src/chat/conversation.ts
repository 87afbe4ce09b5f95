// Conversations as trees: an edited message and a regenerated answer are branches beside the old ones.
//
//   root ── user "Hi" ── assistant "Hello."
//        │            └─ assistant "Good day."   <- chosen
//        └─ user "Hi!" ── …
//
// Values: each change returns a new conversation.

import type { MessageFile } from "../files/attached";
import { isPicture } from "../files/picture";
import type { TextFile } from "../files/textFile";
import { withFiles } from "../files/textFile";
import type { Call } from "../tools/call";
import { sentCall } from "../tools/call";
import { fixed, readable } from "../ui/numbers";

export type Role = "user" | "assistant" | "tool";

/** Which call a tool's result answers. */
export interface Answered {
  callId: string;
  name: string;
  isError: boolean;
}

/** What the model thought before it answered. null: not known, or not yet. */
export interface Thought {
  text: string;
  seconds: number | null;
  numTokens: number | null;
}

export interface Message {
  id: string;
  parent: string;
  role: Role;
  content: string;
  /** Absent: there was none. */
  thought?: Thought;
  /** Sent behind `content`; absent: none. */
  files?: MessageFile[];
  /** The tools that the model calls here; absent: none. */
  calls?: Call[];
  /** Of the role tool alone, where `content` is the result. */
  answered?: Answered;
  /** How the answer ended; null: it is still written, or is no answer. */
  end: string | null;
  error: string | null;
}

export interface Conversation {
  id: string;
  title: string;
  system: string;
  messages: Record<string, Message>;
  /** For each message, and for ROOT, the one that follows it in the branch that is shown. */
  chosen: Record<string, string>;
}

export const ROOT = "root";
/** The end of an answer that the user wrote. */
export const EDITED = "edited";
const TITLE_LEN = 40;

export function newId(): string {
  return Math.random().toString(36).slice(2, 12);
}

export function newConversation(): Conversation {
  return { id: newId(), title: "New chat", system: "", messages: {}, chosen: {} };
}

/** The branch that is shown, from the first message on. */
export function branch(conversation: Conversation): Message[] {
  const found: Message[] = [];
  let next = conversation.chosen[ROOT];
  while (next !== undefined) {
    const message = conversation.messages[next];
    if (message === undefined) break;
    found.push(message);
    next = conversation.chosen[message.id];
  }
  return found;
}

/** The messages before one, in order. */
export function before(conversation: Conversation, id: string): Message[] {
  const found: Message[] = [];
  let at = conversation.messages[conversation.messages[id]?.parent ?? ROOT];
  while (at !== undefined) {
    found.unshift(at);
    at = conversation.messages[at.parent];
  }
  return found;
}

/** The messages that stand at the same place, in the order in which they were written. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return Object.values(conversation.messages).filter((other) => other.parent === message.parent);
}

export function add(
  conversation: Conversation,
  parent: string,
  role: Role,
  content: string,
  files: MessageFile[] = [],
): [Conversation, Message] {
  const message: Message = { id: newId(), parent, role, content, ...(files.length > 0 ? { files } : {}), end: null, error: null };
  const isFirst = Object.keys(conversation.messages).length === 0;
  return [
    {
      ...conversation,
      title: isFirst ? titleOf(content || files[0]?.name || "") : conversation.title,
      messages: { ...conversation.messages, [message.id]: message },
      chosen: { ...conversation.chosen, [parent]: message.id },
    },
    message,
  ];
}

/** What the tools gave back for the calls of a message, in their order; the message behind which it goes on. */
export function addResults(
  conversation: Conversation,
  parent: string,
  results: { call: Call; content: string; isError: boolean }[],
): [Conversation, Message] {
  let last = conversation.messages[parent] as Message;
  for (const { call, content, isError } of results) {
    const [added, message] = add(conversation, last.id, "tool", content);
    const answered = { callId: call.id, name: call.name, isError };
    conversation = change(added, message.id, { answered });
    last = message;
  }
  return [conversation, last];
}

/** What the model might have answered, beside an answer, with the same thought and calls. */
export function editAnswer(conversation: Conversation, { id: _, ...message }: Message, content: string): Conversation {
  const [added, { id }] = add(conversation, message.parent, "assistant", content);
  return change(added, id, { ...message, content, end: EDITED, error: null });
}

/** Another result beside one, and behind it again those of the same answer's other calls. */
export function editResult(conversation: Conversation, message: Message, content: string): [Conversation, Message] {
  const shown = branch(conversation);
  const behind = shown.slice(shown.findIndex(({ id }) => id === message.id) + 1);
  const others = behind.slice(0, behind.findIndex(({ role }) => role !== "tool"));
  const results = [{ ...message, content }, ...others].map(({ content, answered }) => {
    const { callId = "", name = "", isError = false } = answered ?? {};
    return { call: { id: callId, name, arguments: "" }, content, isError };
  });
  return addResults(conversation, message.parent, results);
}

export function change(conversation: Conversation, id: string, fields: Partial<Message>): Conversation {
  const message = conversation.messages[id];
  if (message === undefined) return conversation;
  return { ...conversation, messages: { ...conversation.messages, [id]: { ...message, ...fields } } };
}

/** What stands for a thought that is folded. */
export function thoughtTitle({ seconds, numTokens }: Thought, isWritten: boolean): string {
  if (isWritten && seconds === null) return "Thinking …";
  const time = seconds === null ? "" : ` for ${fixed(seconds, 1)} s`;
  return `Thought${time}${numTokens === null ? "" : `, ${readable(numTokens)} tokens`}`;
}

/** Images stand before the text, which most models read so. */
function parts(content: string, files: readonly MessageFile[] = []): unknown {
  const text = withFiles(content, files.filter((file): file is TextFile => !isPicture(file)));
  const pictures = files.filter(isPicture).map(({ url }) => ({ type: "image_url", image_url: { url } }));
  if (pictures.length === 0) return text;
  return text === "" ? pictures : [...pictures, { type: "text", text }];
}

/** A message as requests have it; the server drops a thought that its model does not read. */
export function sent({ role, content, files, thought, calls, answered }: Message): Record<string, unknown> {
  // The API has no mark for it.
  if (answered?.isError) content = `Error: ${content || "the call failed"}`;
  return {
    role,
    content: calls?.length && content === "" ? null : parts(content, files),
    ...(thought === undefined ? {} : { reasoning_content: thought.text }),
    ...(calls?.length ? { tool_calls: calls.map(sentCall) } : {}),
    ...(answered === undefined ? {} : { tool_call_id: answered.callId }),
  };
}

/** Without a message and all that stands behind it; the newest of its siblings is shown in its place. */
export function without(conversation: Conversation, message: Message): Conversation {
  const gone = new Set([message.id]);
  // Parents are older than what stands behind them.
  for (const { id, parent } of Object.values(conversation.messages)) if (gone.has(parent)) gone.add(id);
  const kept = <Value>(values: Record<string, Value>) => Object.fromEntries(Object.entries(values).filter(([id]) => !gone.has(id)));
  const { [message.parent]: _, ...chosen } = kept(conversation.chosen);
  const left = { ...conversation, messages: kept(conversation.messages), chosen };
  const sibling = siblings(left, message).at(-1);
  return sibling === undefined ? left : choose(left, sibling);
}

export function choose(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent]: message.id } };
}

function titleOf(content: string): string {
  const line = content.trim().split("\n")[0] ?? "";
  return line.length > TITLE_LEN ? `${line.slice(0, TITLE_LEN)}…` : line || "New chat";
}

const ROLES: readonly Role[] = ["user", "assistant", "tool"];

function isCall(value: unknown): boolean {
  const { id, name, arguments: json } = (value ?? {}) as Partial<Record<keyof Call, unknown>>;
  return [id, name, json].every((each) => typeof each === "string");
}

function isFile(value: unknown): boolean {
  const { name, text, url } = (value ?? {}) as Partial<Record<"name" | "text" | "url", unknown>>;
  return typeof name === "string" && (typeof text === "string" || (typeof url === "string" && url.startsWith("data:image/")));
}

/** A conversation that was exported. Throws Error with what is wrong. */
export function readConversation(value: unknown): Conversation {
  const wrong = (what: string) => new Error(`not a conversation of this page: ${what}`);
  if (typeof value !== "object" || value === null) throw wrong("it is no JSON object");
  const { title, system, messages, chosen } = value as Record<string, unknown>;
  if (typeof title !== "string" || typeof system !== "string") throw wrong("`title` and `system` must be texts");
  if (typeof messages !== "object" || messages === null) throw wrong("`messages` must be an object");
  if (typeof chosen !== "object" || chosen === null) throw wrong("`chosen` must be an object");
  for (const [id, message] of Object.entries(messages)) {
    const { role, content, parent, files, thought, calls, answered } = (message ?? {}) as Record<string, unknown>;
    if (!ROLES.includes(role as Role)) throw wrong(`\`messages.${id}.role\` must be one of ${ROLES.join(", ")}`);
    if (typeof content !== "string" || typeof parent !== "string") throw wrong(`\`messages.${id}\` has no text or parent`);
    if (thought !== undefined && typeof (thought as Partial<Thought> | null)?.text !== "string")
      throw wrong(`\`messages.${id}.thought\` has no text`);
    if (files !== undefined && !(Array.isArray(files) && files.every(isFile)))
      throw wrong(`\`messages.${id}.files\` must be a list of files with name and text, or image`);
    if (calls !== undefined && !(Array.isArray(calls) && calls.every(isCall)))
      throw wrong(`\`messages.${id}.calls\` must be a list of calls with id, name and arguments`);
    if ((role === "tool") !== (typeof (answered as Partial<Answered> | undefined)?.callId === "string"))
      throw wrong(`\`messages.${id}.answered.callId\` is what a tool's result has, and nothing else`);
  }
  const read = { title, system, messages, chosen } as Omit<Conversation, "id">;
  return { ...read, id: newId() };
}
