// What of the page is shown.
import { signal } from "@preact/signals";

export const showsTokens = signal(false);
/** On narrow screens one side covers the chat. */
export const openSide = signal<"chats" | "settings" | null>(null);
/** Whether the messages stay at their end while they grow; the reader ends that by scrolling up. */
export const follows = signal(true);

/** A section of the settings that folds. */
export type Section = "system" | "constraint" | "tools" | "parameters";

/** Shows a section of the settings, unfolded. */
export function openSettings(section: Section): void {
  openSide.value = "settings";
  // Once the side is shown.
  requestAnimationFrame(() => {
    const details = document.getElementById(`settings-${section}`) as HTMLDetailsElement;
    details.open = true;
    details.querySelector("summary")?.focus();
    details.scrollIntoView({ block: "nearest" });
  });
}
