// Which chats a search finds.
import type { Conversation } from "./conversation";

export const SEARCH_ID = "chat-search";
const AROUND_LEN = 24;

/** Where a chat has the text: its title, or a message with a few words around it; null: nowhere. */
export function foundIn(conversation: Conversation, query: string): string | null {
  const sought = query.trim().toLowerCase();
  if (conversation.title.toLowerCase().includes(sought)) return "";
  for (const { content } of Object.values(conversation.messages)) {
    const at = content.toLowerCase().indexOf(sought);
    if (at < 0) continue;
    const [from, to] = [Math.max(0, at - AROUND_LEN), at + sought.length + AROUND_LEN];
    return `${from > 0 ? "…" : ""}${content.slice(from, to).replaceAll(/\s+/g, " ")}${to < content.length ? "…" : ""}`;
  }
  return null;
}
