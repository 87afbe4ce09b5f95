// A button that copies a text, and says that it did.
import { useState } from "preact/hooks";

const SHOWN_MS = 1500;

export function Copy({ text, label = "Copy" }: { text: () => string; label?: string }) {
  const [said, say] = useState<string | null>(null);
  async function copy(): Promise<void> {
    try {
      await navigator.clipboard.writeText(text());
      say("Copied");
    } catch {
      // Only pages from https or this machine may: select it instead.
      say("Not allowed here");
    }
    setTimeout(() => say(null), SHOWN_MS);
  }
  return (
    <button type="button" class="quiet" onClick={() => void copy()}>
      <span aria-live="polite">{said ?? label}</span>
    </button>
  );
}
