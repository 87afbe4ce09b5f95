// The conversations of this browser: choose, search, begin, rename, delete, export, import.
import { useRef, useState } from "preact/hooks";
import { openShortcuts } from "../ui/Shortcuts";
import type { Conversation } from "./conversation";
import { readConversation } from "./conversation";
import { foundIn, SEARCH_ID } from "./search";
import { begin, conversations, current, currentId, open, remove, replace } from "./store";
import { openSide } from "./view";

export function ChatList() {
  const [trouble, setTrouble] = useState<string | null>(null);
  const [query, setQuery] = useState("");
  const file = useRef<HTMLInputElement>(null);
  const found = conversations.value.map((one) => ({ one, where: foundIn(one, query) })).filter(({ where }) => where !== null);
  async function take(): Promise<void> {
    const chosen = file.current?.files?.[0];
    if (chosen === undefined || file.current === null) return;
    try {
      const read: unknown = JSON.parse(await chosen.text());
      for (const each of (Array.isArray(read) ? read : [read]).map(readConversation).reverse()) open(each);
      setTrouble(null);
    } catch (error) {
      setTrouble(error instanceof Error ? error.message : String(error));
    }
    file.current.value = "";
  }
  return (
    <>
      <button type="button" class="primary" onClick={begin}>
        New chat
      </button>
      <input
        id={SEARCH_ID}
        type="search"
        aria-label="Search chats"
        placeholder="Search chats (Ctrl+K)"
        value={query}
        onInput={(event) => setQuery(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape") return;
          // It would stop an answer.
          event.stopPropagation();
          setQuery("");
        }}
      />
      <ul class="chat-list">
        {found.map(({ one, where }) => (
          <Row key={one.id} conversation={one} where={where ?? ""} />
        ))}
      </ul>
      {found.length === 0 && (
        <p class="hint" role="status">
          No chat has that text.
        </p>
      )}
      <div class="row">
        <button type="button" onClick={() => save(current.value.title, current.value)}>
          Export
        </button>
        {conversations.value.length > 1 && (
          <button type="button" onClick={() => save("chats", conversations.value)}>
            Export all
          </button>
        )}
        <button type="button" onClick={() => file.current?.click()}>
          Import
        </button>
        <input ref={file} type="file" accept="application/json" hidden aria-label="Chat to import" onChange={() => void take()} />
      </div>
      <button type="button" class="quiet" onClick={openShortcuts}>
        Keyboard shortcuts
      </button>
      {trouble !== null && (
        <p class="error" role="alert">
          {trouble}
        </p>
      )}
    </>
  );
}

function Row({ conversation, where }: { conversation: Conversation; where: string }) {
  const [isRenamed, setRenamed] = useState(false);
  const { id, title } = conversation;
  function rename(text: string): void {
    setRenamed(false);
    if (text.trim() !== "") replace({ ...conversation, title: text.trim() });
  }
  if (isRenamed) {
    return (
      <li>
        <input
          type="text"
          aria-label="New title"
          value={title}
          ref={(field) => field?.select()}
          onBlur={(event) => rename(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter") rename(event.currentTarget.value);
            if (event.key !== "Escape") return;
            event.stopPropagation();
            setRenamed(false);
          }}
        />
      </li>
    );
  }
  return (
    <li>
      <button
        type="button"
        class="quiet name"
        aria-current={id === current.value.id}
        title={title}
        onClick={() => {
          currentId.value = id;
          openSide.value = null;
        }}
      >
        {title}
        {where !== "" && <small>{where}</small>}
      </button>
      <span class="row-actions">
        <button type="button" class="quiet" aria-label={`Rename ${title}`} onClick={() => setRenamed(true)}>
          ✎
        </button>
        <button type="button" class="quiet" aria-label={`Delete ${title}`} onClick={() => remove(id)}>
          ✕
        </button>
      </span>
    </li>
  );
}

function save(title: string, value: unknown): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  link.download = `${title.replaceAll(/[^\w-]+/g, "-").slice(0, 40) || "chat"}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}
