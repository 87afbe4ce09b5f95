// A column beside the main one; on narrow screens it covers that, and is opened by a button.
import type { ComponentChildren } from "preact";
import { openSide } from "../chat/view";

export function Side({ name, label, children }: { name: "chats" | "settings"; label: string; children: ComponentChildren }) {
  return (
    <aside class={`side ${name} ${openSide.value === name ? "open" : ""}`} aria-label={label} tabIndex={0}>
      <button type="button" class="quiet close" onClick={() => (openSide.value = null)}>
        Close
      </button>
      {children}
    </aside>
  );
}
