// A column beside the main one; on narrow screens it covers that, and is opened by a button.
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { openSide } from "../chat/view";

export function Side({ name, label, children }: { name: "chats" | "settings"; label: string; children: ComponentChildren }) {
  const side = useRef<HTMLElement>(null);
  const isOpen = openSide.value === name;
  useEffect(() => {
    // Unless who opened it chose a field within it.
    if (isOpen && side.current?.contains(document.activeElement) === false) side.current.focus({ preventScroll: true });
  }, [isOpen]);
  return (
    <aside
      ref={side}
      class={`side ${name} ${isOpen ? "open" : ""}`}
      aria-label={label}
      tabIndex={0}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !isOpen) return;
        // It would stop an answer.
        event.stopPropagation();
        openSide.value = null;
      }}
    >
      <div class="close">
        <strong>{label}</strong>
        <button type="button" onClick={() => (openSide.value = null)}>
          Close
        </button>
      </div>
      {children}
    </aside>
  );
}
