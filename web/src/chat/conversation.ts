// Conversations as trees: an edited message and a regenerated answer are branches beside the old ones.
//
//   root ── user "Hi" ── assistant "Hello."
//        │            └─ assistant "Good day."   <- chosen
//        └─ user "Hi!" ── …
//
// Values: each change returns a new conversation.

export type Role = "user" | "assistant";

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

export function add(conversation: Conversation, parent: string, role: Role, content: string): [Conversation, Message] {
  const message: Message = { id: newId(), parent, role, content, end: null, error: null };
  const isFirst = Object.keys(conversation.messages).length === 0;
  return [
    {
      ...conversation,
      title: isFirst ? titleOf(content) : conversation.title,
      messages: { ...conversation.messages, [message.id]: message },
      chosen: { ...conversation.chosen, [parent]: message.id },
    },
    message,
  ];
}

export function change(conversation: Conversation, id: string, fields: Partial<Message>): Conversation {
  const message = conversation.messages[id];
  if (message === undefined) return conversation;
  return { ...conversation, messages: { ...conversation.messages, [id]: { ...message, ...fields } } };
}

/** What stands for a thought that is folded. */
export function thoughtTitle({ seconds, numTokens }: Thought, isWritten: boolean): string {
  if (isWritten && seconds === null) return "Thinking …";
  const time = seconds === null ? "" : ` for ${seconds.toFixed(1)} s`;
  return `Thought${time}${numTokens === null ? "" : `, ${numTokens} tokens`}`;
}

/** A message as requests have it; the server drops a thought that its model does not read. */
export function sent({ role, content, thought }: Message): Record<string, string> {
  return thought === undefined ? { role, content } : { role, content, reasoning_content: thought.text };
}

export function choose(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent]: message.id } };
}

function titleOf(content: string): string {
  const line = content.trim().split("\n")[0] ?? "";
  return line.length > TITLE_LEN ? `${line.slice(0, TITLE_LEN)}…` : line || "New chat";
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
    const { role, content, parent, thought } = (message ?? {}) as Record<string, unknown>;
    if (role !== "user" && role !== "assistant") throw wrong(`\`messages.${id}.role\` must be user or assistant`);
    if (typeof content !== "string" || typeof parent !== "string") throw wrong(`\`messages.${id}\` has no text or parent`);
    if (thought !== undefined && typeof (thought as Partial<Thought> | null)?.text !== "string")
      throw wrong(`\`messages.${id}.thought\` has no text`);
  }
  const read = { title, system, messages, chosen } as Omit<Conversation, "id">;
  return { ...read, id: newId() };
}
