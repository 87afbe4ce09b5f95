// The conversations of this browser: choose, begin, delete, export, import.
import { useRef, useState } from "preact/hooks";
import { newConversation, readConversation } from "./conversation";
import { conversations, current, currentId, open, remove } from "./store";
import { openSide } from "./view";

export function ChatList() {
  const [trouble, setTrouble] = useState<string | null>(null);
  const file = useRef<HTMLInputElement>(null);
  async function take(): Promise<void> {
    const chosen = file.current?.files?.[0];
    if (chosen === undefined || file.current === null) return;
    try {
      open(readConversation(JSON.parse(await chosen.text())));
      setTrouble(null);
    } catch (error) {
      setTrouble(error instanceof Error ? error.message : String(error));
    }
    file.current.value = "";
  }
  return (
    <>
      <button type="button" class="primary" onClick={() => open(newConversation())}>
        New chat
      </button>
      <ul class="chat-list">
        {conversations.value.map((one) => (
          <li key={one.id}>
            <button
              type="button"
              class="quiet name"
              aria-current={one.id === current.value.id}
              onClick={() => {
                currentId.value = one.id;
                openSide.value = null;
              }}
            >
              {one.title}
            </button>
            <button type="button" class="quiet" aria-label={`Delete ${one.title}`} onClick={() => remove(one.id)}>
              ✕
            </button>
          </li>
        ))}
      </ul>
      <div class="row">
        <button type="button" onClick={save}>
          Export
        </button>
        <button type="button" onClick={() => file.current?.click()}>
          Import
        </button>
        <input ref={file} type="file" accept="application/json" hidden aria-label="Chat to import" onChange={() => void take()} />
      </div>
      {trouble !== null && (
        <p class="error" role="alert">
          {trouble}
        </p>
      )}
    </>
  );
}

function save(): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(current.value, null, 2)], { type: "application/json" }));
  link.download = `${current.value.title.replaceAll(/[^\w-]+/g, "-").slice(0, 40) || "chat"}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}
