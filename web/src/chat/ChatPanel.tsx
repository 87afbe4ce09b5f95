// The chat: its messages and the field for the next one.
import { useEffect, useRef } from "preact/hooks";
import { Side } from "../ui/Side";
import { answer, stop, writing } from "./answer";
import { ChatList } from "./ChatList";
import { branch, add, ROOT } from "./conversation";
import { MessageView } from "./MessageView";
import { SettingsSide } from "./SettingsSide";
import { current, replace, storageTrouble } from "./store";

// Closer to its end than this, a chat follows what is written.
const NEAR_PX = 120;
// To begin with; a model of a hundred million parameters answers them, and comes to an end.
const QUESTIONS = ["What is the capital of Japan?", "What is photosynthesis?", "Write a haiku about the sea."];

export function ChatPanel() {
  return (
    <div class="columns">
      <Side name="chats" label="Chats">
        <ChatList />
      </Side>
      <main class="chat">
        <Messages />
        <Composer />
      </main>
      <SettingsSide />
    </div>
  );
}

function Messages() {
  const conversation = current.value;
  const messages = branch(conversation);
  const list = useRef<HTMLDivElement>(null);
  const isNear = useRef(true);
  useEffect(() => {
    const element = list.current;
    if (element !== null && isNear.current) element.scrollTop = element.scrollHeight;
  });
  function onScroll(): void {
    const element = list.current;
    if (element !== null) isNear.current = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
  }
  return (
    // A region that scrolls must be reachable by keyboard.
    <div class="messages" ref={list} onScroll={onScroll} role="log" aria-label="Messages" aria-live="off" tabIndex={0}>
      <details class="system" open={conversation.system !== ""}>
        <summary>System prompt</summary>
        <textarea
          aria-label="System prompt"
          rows={3}
          placeholder="None"
          value={conversation.system}
          onInput={(event) => replace({ ...conversation, system: event.currentTarget.value })}
        />
      </details>
      {messages.length === 0 && (
        <div class="empty">
          <p class="hint">Ask something. Nothing leaves this server.</p>
          {QUESTIONS.map((question) => (
            <button key={question} type="button" disabled={writing.value !== null} onClick={() => ask(question)}>
              {question}
            </button>
          ))}
        </div>
      )}
      {messages.map((message) => (
        <MessageView key={message.id} conversation={conversation} message={message} />
      ))}
      {storageTrouble.value !== null && (
        <p class="error" role="alert">
          {storageTrouble.value}
        </p>
      )}
    </div>
  );
}

/** Sends a message behind those that are shown. */
function ask(text: string): void {
  const parent = branch(current.value).at(-1)?.id ?? ROOT;
  const [changed, message] = add(current.value, parent, "user", text);
  void answer(changed, message.id);
}

function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const isBusy = writing.value !== null;
  useEffect(() => field.current?.focus(), [current.value.id]);
  function send(): void {
    const text = field.current?.value ?? "";
    if (isBusy || text.trim() === "" || field.current === null) return;
    field.current.value = "";
    ask(text);
  }
  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Escape") stop();
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  }
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea ref={field} rows={2} aria-label="Message" placeholder="Message; Enter sends, Shift+Enter breaks the line" onKeyDown={onKeyDown} />
      {isBusy ? (
        <button type="button" onClick={stop}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary">
          Send
        </button>
      )}
    </form>
  );
}
