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
import { KeyDialog } from "./ui/KeyDialog";
import { Shortcuts } from "./ui/Shortcuts";
import { nextTheme, theme } from "./ui/theme";

const VIEWS = { chat: "Chat", completion: "Completion", live: "Live" } as const;
type View = keyof typeof VIEWS;

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

async function load(): Promise<void> {
  try {
    await loadModels();
    trouble.value = null;
  } catch (error) {
    // A key is asked for by its dialog.
    const isKey = error instanceof ServerError && error.status === 401;
    trouble.value = isKey ? "This server needs an API key." : sentence(error);
  }
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
      <KeyDialog onKey={() => void load()} />
    </>
  );
}

function Header() {
  return (
    <header class="top">
      <span class="brand">Tandem</span>
      <nav aria-label="Views">
        {Object.entries(VIEWS).map(([name, label]) => (
          <a key={name} href={`#${name}`} aria-current={view.value === name ? "page" : undefined}>
            {label}
          </a>
        ))}
        <a href="docs">API</a>
      </nav>
      <span class="tools">
        {view.value === "chat" && (
          <button type="button" class="narrow" onClick={() => (openSide.value = "chats")}>
            Chats
          </button>
        )}
        {view.value !== "live" && (
          <button type="button" class="narrow" onClick={() => (openSide.value = "settings")}>
            Settings
          </button>
        )}
        <button type="button" class="quiet" aria-label={`Theme: ${theme.value}`} onClick={nextTheme}>
          {{ system: "◐", light: "☀", dark: "☾" }[theme.value]}
        </button>
      </span>
    </header>
  );
}

render(<Page />, document.getElementById("page") as HTMLElement);
