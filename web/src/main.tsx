// The page at /: three views and the header that switches them.
import { signal } from "@preact/signals";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import { sentence, ServerError } from "./api/errors";
import { loadModels } from "./api/model";
import { ChatPanel } from "./chat/ChatPanel";
import { CompletionPanel } from "./chat/CompletionPanel";
import { UndoBar } from "./chat/UndoBar";
import { openSide } from "./chat/view";
import { LivePanel } from "./live/LivePanel";
import "./styles.css";
import "./chat/chatList.css";
import "./files/files.css";
import { KeyDialog } from "./ui/KeyDialog";
import { Shortcuts } from "./ui/Shortcuts";
import { ThemeButton } from "./ui/ThemeButton";
import type { View } from "./ui/Views";
import { Views, VIEWS } from "./ui/Views";

const trouble = signal<string | null>(null);
const view = signal<View>(viewOfAddress());
addEventListener("hashchange", () => {
  view.value = viewOfAddress();
  openSide.value = null;
});

function viewOfAddress(): View {
  const name = location.hash.slice(1);
  return name in VIEWS ? (name as View) : "chat";
}

/** Whether the server let this page in. */
async function load(): Promise<boolean> {
  try {
    await loadModels();
    trouble.value = null;
  } catch (error) {
    const isKey = error instanceof ServerError && error.status === 401;
    trouble.value = isKey ? "This server needs an API key." : sentence(error);
    return !isKey;
  }
  return true;
}

function Page() {
  useEffect(() => void load(), []);
  return (
    <>
      <Header />
      {trouble.value !== null && (
        <p class="banner" role="alert">
          {trouble.value}{" "}
          <button type="button" onClick={() => void load()}>
            Try again
          </button>
        </p>
      )}
      {view.value === "chat" && <ChatPanel />}
      {view.value === "completion" && <CompletionPanel />}
      {view.value === "live" && <LivePanel />}
      <UndoBar />
      <Shortcuts />
      <KeyDialog onKey={load} />
    </>
  );
}

function Header() {
  const hasSettings = view.value !== "live";
  return (
    <header class={`top ${hasSettings ? "crowded" : ""}`}>
      {view.value === "chat" && (
        <button type="button" class="narrow" aria-label="Chats" onClick={() => (openSide.value = "chats")}>
          <span aria-hidden="true">☰</span> <span class="word">Chats</span>
        </button>
      )}
      <span class="brand">Tandem</span>
      <Views current={view.value} />
      <span class="roomy">
        <ThemeButton />
      </span>
      {hasSettings && (
        <button type="button" class="narrow" onClick={() => (openSide.value = "settings")}>
          Settings
        </button>
      )}
    </header>
  );
}

render(<Page />, document.getElementById("page") as HTMLElement);
