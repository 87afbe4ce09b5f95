// The calls of an answer, and behind it the form for what the tools give back.
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import type { Conversation, Message } from "../chat/conversation";
import { addResults } from "../chat/conversation";
import { answer, writing } from "../chat/answer";
import { Copy } from "../ui/Copy";
import type { Call } from "./call";
import { laidOut } from "./call";

interface Draft {
  content: string;
  isError: boolean;
}

const EMPTY: Draft = { content: "", isError: false };
/** What was typed so far, by call; it outlives a look into another chat. */
const drafts = signal<Record<string, Draft>>({});

export function Calls({ calls }: { calls: Call[] }) {
  return (
    <>
      {calls.map((call) => (
        <CallView key={call.id} call={call} />
      ))}
    </>
  );
}

function CallView({ call }: { call: Call }) {
  const shown = laidOut(call.arguments);
  return (
    <section class="call" aria-label={`Call of ${call.name}`}>
      <header>
        <span>
          Call of <code>{call.name}</code>
        </span>
        <Copy text={() => shown} />
      </header>
      <pre tabIndex={0}>{shown}</pre>
    </section>
  );
}

/** At the end of the last message: where it goes, nothing moves. */
export function Results({ conversation, message }: { conversation: Conversation; message: Message }) {
  const calls = message.calls ?? [];
  const first = useRef<HTMLTextAreaElement>(null);
  const isBusy = writing.value !== null;
  const draftOf = (call: Call): Draft => drafts.value[message.id + call.id] ?? EMPTY;
  const set = (call: Call, fields: Partial<Draft>): void => {
    drafts.value = { ...drafts.value, [message.id + call.id]: { ...draftOf(call), ...fields } };
  };
  useEffect(() => {
    // Nobody is torn away from what they are writing.
    const active = document.activeElement;
    const isIdle = active === document.body || (active instanceof HTMLTextAreaElement && active.value === "");
    if (isIdle) first.current?.focus();
  }, []);
  function send(event: SubmitEvent): void {
    event.preventDefault();
    if (isBusy) return;
    const results = calls.map((call) => ({ call, ...draftOf(call) }));
    const [changed, last] = addResults(conversation, message.id, results);
    void answer(changed, last.id);
  }
  return (
    <form class="results" onSubmit={send}>
      {calls.map((call, index) => (
        <div key={call.id} class="result">
          <label>
            Result of {call.name}
            <textarea
              ref={index === 0 ? first : null}
              rows={2}
              required={!draftOf(call).isError}
              placeholder={draftOf(call).isError ? "What went wrong" : "What the tool gives back; Enter sends"}
              value={draftOf(call).content}
              onInput={(event) => set(call, { content: event.currentTarget.value })}
              onKeyDown={(event) => {
                if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
                event.preventDefault();
                event.currentTarget.form?.requestSubmit();
              }}
            />
          </label>
          <label class="inline">
            <input type="checkbox" checked={draftOf(call).isError} onChange={(event) => set(call, { isError: event.currentTarget.checked })} />
            Error
          </label>
        </div>
      ))}
      <button type="submit" class="primary" disabled={isBusy}>
        {calls.length === 1 ? "Send the result" : "Send the results"}
      </button>
    </form>
  );
}
