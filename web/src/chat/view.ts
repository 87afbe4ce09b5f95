// What of the page is shown.
import { signal } from "@preact/signals";

export const showsTokens = signal(false);
/** On narrow screens one side covers the chat. */
export const openSide = signal<"chats" | "settings" | null>(null);
