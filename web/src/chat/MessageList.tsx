// The messages of the chat, which stay at their end while they grow, unless the reader scrolls up.
import { useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { branch } from "./conversation";
import { EmptyChat } from "./EmptyChat";
import { MessageView } from "./MessageView";
import { current, storageTrouble } from "./store";
import { follows } from "./view";

// A reader who comes this close to the end again follows again.
const NEAR_PX = 40;
// Fractions of pixels are no scrolling.
const STILL_PX = 2;

export function MessageList() {
  const conversation = current.value;
  const messages = branch(conversation);
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  const lastTop = useRef(0);

  function goToEnd(): void {
    const element = scroller.current;
    if (element !== null) element.scrollTop = element.scrollHeight;
  }
  /** Pixels below what is shown. */
  function rest(): number {
    const element = scroller.current;
    return element === null ? 0 : element.scrollHeight - element.scrollTop - element.clientHeight;
  }
  function onScroll(): void {
    const top = scroller.current?.scrollTop ?? 0;
    if (top < lastTop.current && rest() > STILL_PX) follows.value = false;
    else if (rest() < NEAR_PX) follows.value = true;
    lastTop.current = top;
  }
  useLayoutEffect(() => {
    follows.value = true;
    goToEnd();
  }, [conversation.id]);
  useSignalEffect(() => {
    if (follows.value) goToEnd();
  });
  useEffect(() => {
    const observer = new ResizeObserver(() => {
      if (follows.peek()) goToEnd();
      else if (rest() < STILL_PX) follows.value = true;
    });
    for (const element of [scroller.current, content.current]) if (element !== null) observer.observe(element);
    return () => observer.disconnect();
  }, []);

  return (
    <div class="message-area">
      {/* A region that scrolls must be reachable by keyboard. */}
      <div class="messages" ref={scroller} onScroll={onScroll} role="log" aria-label="Messages" aria-live="off" tabIndex={0}>
        <div ref={content}>
          {messages.length === 0 && <EmptyChat />}
          {messages.map((message) => (
            <MessageView key={message.id} conversation={conversation} message={message} />
          ))}
          {storageTrouble.value !== null && (
            <p class="error" role="alert">
              {storageTrouble.value}
            </p>
          )}
        </div>
      </div>
      {!follows.value && (
        <button type="button" class="to-end" onClick={() => (follows.value = true)}>
          ↓ To the end
        </button>
      )}
    </div>
  );
}
