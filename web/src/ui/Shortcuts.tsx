// The keyboard's shortcuts, and the list of them.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { stop } from "../chat/answer";
import { branch } from "../chat/conversation";
import { SEARCH_ID } from "../chat/search";
import { begin, conversations, current, currentId, remove } from "../chat/store";
import { openSide } from "../chat/view";

interface Shortcut {
  keys: string;
  does: string;
  /** Absent: another place listens to it. */
  act?: () => void;
}

const isOpen = signal(false);

export function openShortcuts(): void {
  isOpen.value = true;
}

// Ctrl is Cmd on a Mac. Browsers keep Ctrl+N, Ctrl+T and Ctrl+W for themselves.
const SHORTCUTS: readonly Shortcut[] = [
  { keys: "Enter", does: "send the message, or the tool's result" },
  { keys: "Shift+Enter", does: "a new line" },
  { keys: "Escape", does: "stop the answer", act: stop },
  { keys: "Ctrl+K", does: "search the chats", act: search },
  { keys: "Ctrl+Shift+O", does: "a new chat", act: begin },
  { keys: "Alt+ArrowUp", does: "the chat above", act: () => go(-1) },
  { keys: "Alt+ArrowDown", does: "the chat below", act: () => go(1) },
  { keys: "Ctrl+Shift+D", does: "delete this chat (can be undone)", act: () => remove(current.value.id) },
  { keys: "Ctrl+Shift+E", does: "edit your last message", act: edit },
  { keys: "Ctrl+/", does: "this list", act: openShortcuts },
];

function search(): void {
  openSide.value = "chats";
  requestAnimationFrame(() => document.getElementById(SEARCH_ID)?.focus());
}

function go(step: number): void {
  const index = conversations.value.findIndex(({ id }) => id === current.value.id);
  currentId.value = conversations.value[index + step]?.id ?? currentId.value;
}

function edit(): void {
  const last = branch(current.value).findLast(({ role }) => role === "user");
  if (last !== undefined) document.getElementById(`edit-${last.id}`)?.click();
}

function isPressed(keys: string, event: KeyboardEvent): boolean {
  const parts = keys.split("+");
  const isKey = event.key.toLowerCase() === parts.at(-1)?.toLowerCase();
  const hasCtrl = (event.ctrlKey || event.metaKey) === parts.includes("Ctrl");
  return isKey && hasCtrl && event.shiftKey === parts.includes("Shift") && event.altKey === parts.includes("Alt");
}

export function Shortcuts() {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    function onKeyDown(event: KeyboardEvent): void {
      const pressed = SHORTCUTS.find(({ keys, act }) => act !== undefined && isPressed(keys, event));
      if (pressed?.act === undefined || event.defaultPrevented || document.querySelector("dialog[open]") !== null) return;
      if (pressed.keys !== "Escape") event.preventDefault();
      pressed.act();
    }
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  useEffect(() => {
    if (isOpen.value) dialog.current?.showModal();
  }, [isOpen.value]);
  return (
    <dialog ref={dialog} aria-labelledby="shortcuts-title" onClose={() => (isOpen.value = false)}>
      <h2 id="shortcuts-title">Keyboard shortcuts</h2>
      <dl class="shortcuts">
        {SHORTCUTS.map(({ keys, does }) => (
          <div key={keys}>
            <dt>
              <kbd>{keys.replace("ArrowUp", "↑").replace("ArrowDown", "↓")}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <form method="dialog">
        <button class="primary">Close</button>
      </form>
    </dialog>
  );
}
