// One message of a chat: its text or its tokens, its branches, and what can be done with it.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { SentFiles } from "../files/AttachedFiles";
import { sentCall } from "../tools/call";
import { Calls, Results } from "../tools/Calls";
import { TokenText } from "../tokens/TokenText";
import { Copy } from "../ui/Copy";
import { ErrorText } from "../ui/ErrorText";
import { Markdown } from "../ui/Markdown";
import { answer, progress, writing } from "./answer";
import type { Conversation, Message, Thought } from "./conversation";
import { add, branch, choose, editAnswer, editResult, siblings, thoughtTitle } from "./conversation";
import { Continue, Delete } from "./MoreActions";
import { replace, tokensOf } from "./store";
import { follows, showsTokens } from "./view";

export function MessageView({ conversation, message }: { conversation: Conversation; message: Message }) {
  const [isEdited, setEdited] = useState(false);
  const isWritten = writing.value === message.id;
  const awaitsResults = !isWritten && !!message.calls?.length && branch(conversation).at(-1)?.id === message.id;
  const who = whoOf(message);
  return (
    <article class={`message ${message.role}`} aria-label={who}>
      <header>
        <strong>{who}</strong>
        <Branches conversation={conversation} message={message} />
        {isWritten && <span class="progress">{progress.value}</span>}
        {!isEdited && !isWritten && <Actions conversation={conversation} message={message} onEdit={() => setEdited(true)} />}
      </header>
      {isEdited ? (
        <Editor conversation={conversation} message={message} onEnd={() => setEdited(false)} />
      ) : (
        <Body message={message} isWritten={isWritten} />
      )}
      <Calls calls={message.calls ?? []} />
      {message.error !== null && <ErrorText text={message.error} />}
      <footer>
        {message.end !== null && <span class="hint">{message.end}</span>}
        <Continue conversation={conversation} message={message} />
      </footer>
      {awaitsResults && <Results conversation={conversation} message={message} />}
    </article>
  );
}

function whoOf({ role, answered }: Message): string {
  if (answered !== undefined) return `${answered.isError ? "Error" : "Result"} of ${answered.name}`;
  return role === "user" ? "You" : "Model";
}

function Body({ message, isWritten }: { message: Message; isWritten: boolean }) {
  const tokens = tokensOf.value[message.id];
  if (message.role !== "assistant") {
    return (
      <>
        <div class="plain">{message.content}</div>
        <SentFiles files={message.files ?? []} />
      </>
    );
  }
  if (showsTokens.value && tokens !== undefined && tokens.length > 0) return <TokenText tokens={tokens} isGrowing={isWritten} />;
  const isEmpty = message.content === "" && message.thought === undefined && message.calls === undefined;
  if (isWritten && isEmpty) return <p class="hint">Waiting for the model …</p>;
  return (
    <>
      {message.thought !== undefined && <ThoughtView thought={message.thought} isWritten={isWritten} />}
      <Markdown text={message.content} />
    </>
  );
}

/** Folded; who opens it reads along. */
function ThoughtView({ thought, isWritten }: { thought: Thought; isWritten: boolean }) {
  return (
    <details class="thought">
      {/* What it unfolds is looked at, not what comes behind it. */}
      <summary onClick={() => (follows.value = false)}>{thoughtTitle(thought, isWritten)}</summary>
      <div class="plain">{thought.text}</div>
    </details>
  );
}

function Branches({ conversation, message }: { conversation: Conversation; message: Message }) {
  const all = siblings(conversation, message);
  if (all.length < 2) return null;
  const index = all.findIndex(({ id }) => id === message.id);
  const go = (step: number) => {
    const other = all[index + step];
    if (other !== undefined) replace(choose(conversation, other));
  };
  return (
    <span class="branches">
      <button type="button" class="quiet" aria-label="Branch before" disabled={index === 0} onClick={() => go(-1)}>
        ‹
      </button>
      <span>
        {index + 1} / {all.length}
      </span>
      <button type="button" class="quiet" aria-label="Branch behind" disabled={index === all.length - 1} onClick={() => go(1)}>
        ›
      </button>
    </span>
  );
}

/** In the message's first line, where they take no height. */
function Actions({ conversation, message, onEdit }: { conversation: Conversation; message: Message; onEdit: () => void }) {
  const isBusy = writing.value !== null;
  return (
    <span class="actions">
      <Copy text={() => message.content || JSON.stringify(message.calls?.map(sentCall), null, 2)} />
      <button type="button" class="quiet" id={`edit-${message.id}`} disabled={isBusy} onClick={onEdit}>
        Edit
      </button>
      {message.role === "assistant" && (
        <button type="button" class="quiet" disabled={isBusy} onClick={() => void answer(conversation, message.parent)}>
          Regenerate
        </button>
      )}
      <Delete conversation={conversation} message={message} />
    </span>
  );
}

function Editor({ conversation, message, onEnd }: { conversation: Conversation; message: Message; onEnd: () => void }) {
  const [text, setText] = useState(message.content);
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => field.current?.focus(), []);
  const isAnswer = message.role === "assistant";
  function send(): void {
    if (isAnswer) {
      replace(editAnswer(conversation, message, text));
      onEnd();
      return;
    }
    const [changed, edited] =
      message.role === "tool" ? editResult(conversation, message, text) : add(conversation, message.parent, "user", text, message.files);
    onEnd();
    void answer(changed, edited.id);
  }
  return (
    <div class="editor">
      <textarea ref={field} aria-label="Edited message" rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      <div class="row">
        <button type="button" class="primary" disabled={text.trim() === ""} onClick={send}>
          {isAnswer ? "Keep as a new branch" : "Send as a new branch"}
        </button>
        <button type="button" onClick={onEnd}>
          Cancel
        </button>
      </div>
    </div>
  );
}
