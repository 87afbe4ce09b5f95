// The conversations, kept in this browser.
import { computed, effect, signal } from "@preact/signals";
import type { Token } from "../tokens/token";
import type { Conversation } from "./conversation";
import { newConversation, readConversation } from "./conversation";
import { offerUndo } from "./undo";

const NAME = "tandem.conversations";
const DELAY_MS = 300;

function load(): Conversation[] {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    const found = Array.isArray(stored) ? stored.map(readConversation) : [];
    return found.length > 0 ? found : [newConversation()];
  } catch {
    // What another version wrote, or a user by hand: a new one begins.
    return [newConversation()];
  }
}

export const conversations = signal<Conversation[]>(load());
export const currentId = signal<string>(conversations.value[0]?.id ?? "");
export const current = computed(
  () => conversations.value.find((one) => one.id === currentId.value) ?? (conversations.value[0] as Conversation),
);
/** Why nothing more is kept; null: it is. */
export const storageTrouble = signal<string | null>(null);
/** Tokens of answers by message; too many to be kept in the browser. */
export const tokensOf = signal<Record<string, Token[]>>({});

let timer: ReturnType<typeof setTimeout> | undefined;

function keep(): void {
  clearTimeout(timer);
  timer = undefined;
  try {
    localStorage.setItem(NAME, JSON.stringify(conversations.value));
    storageTrouble.value = null;
  } catch {
    storageTrouble.value = "This browser keeps no more: export and delete old chats.";
  }
}

effect(() => {
  void conversations.value;
  timer ??= setTimeout(keep, DELAY_MS);
});
// Also where the page is left before that.
addEventListener("pagehide", keep);

export function replace(conversation: Conversation): void {
  conversations.value = conversations.value.map((one) => (one.id === conversation.id ? conversation : one));
}

export function open(conversation: Conversation): void {
  conversations.value = [conversation, ...conversations.value];
  currentId.value = conversation.id;
}

/** A new chat, or the one that nothing has been said in yet. */
export function begin(): void {
  const empty = conversations.value.find(({ messages, system }) => Object.keys(messages).length === 0 && system === "");
  if (empty === undefined) open(newConversation());
  else currentId.value = empty.id;
}

/** Takes a chat away; for a while it can be brought back to its place. */
export function remove(id: string): void {
  const index = conversations.value.findIndex((one) => one.id === id);
  const removed = conversations.value[index];
  if (removed === undefined) return;
  offerUndo(removed.title, () => {
    conversations.value = conversations.value.toSpliced(index, 0, removed);
    currentId.value = id;
  });
  const rest = conversations.value.filter((one) => one.id !== id);
  conversations.value = rest.length > 0 ? rest : [newConversation()];
  if (currentId.value === id) currentId.value = conversations.value[0]?.id ?? "";
}

export function conversationOf(id: string): Conversation | undefined {
  return conversations.value.find((one) => one.id === id);
}
