// The field for the next message. While an answer is written, Enter lets the message wait for its end.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { AttachButton } from "../files/AttachButton";
import { attached } from "../files/attached";
import { AttachedFiles } from "../files/AttachedFiles";
import { ActiveChips, Chip } from "./ActiveChips";
import { ask, stop, writing } from "./answer";
import { branch } from "./conversation";
import { current } from "./store";

export function Composer() {
  const field = useRef<HTMLTextAreaElement>(null);
  const [isWaiting, setWaiting] = useState(false);
  const isBusy = writing.value !== null;
  const { id } = current.value;
  // With the chat, not a moment behind it: by then, another field may have been chosen.
  useLayoutEffect(() => {
    field.current?.focus();
    setWaiting(false);
  }, [id]);
  useEffect(() => {
    if (!isWaiting || isBusy) return;
    setWaiting(false);
    // Behind an error the message stays in its field: it would most likely meet the same one.
    if (branch(current.value).at(-1)?.error == null) send();
  }, [isWaiting, isBusy]);

  function send(): void {
    const text = field.current?.value ?? "";
    if ((text.trim() === "" && attached.value.length === 0) || field.current === null) return;
    if (isBusy) {
      setWaiting(true);
      return;
    }
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
      <ActiveChips isChat>
        {isWaiting && (
          <Chip name="Your message" off="Do not send the message that waits" onOff={() => setWaiting(false)}>
            is sent when this answer ends, or is stopped
          </Chip>
        )}
      </ActiveChips>
      <AttachedFiles />
      <div class="field-row">
        <AttachButton />
        <textarea
          ref={field}
          rows={2}
          aria-label="Message"
          placeholder={isBusy ? "Enter sends after this answer" : "Message"}
          onKeyDown={onKeyDown}
        />
        <button type={isBusy ? "button" : "submit"} class={isBusy ? "" : "primary"} onClick={isBusy ? stop : undefined}>
          {isBusy ? "Stop" : "Send"}
        </button>
      </div>
    </form>
  );
}
