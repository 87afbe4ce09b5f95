// What can be done with a message beside copying and writing it anew.
import { canGoOn, goOn, writing } from "./answer";
import type { Conversation, Message } from "./conversation";
import { without } from "./conversation";
import { conversationOf, replace } from "./store";
import { offerUndo } from "./undo";

interface Properties {
  conversation: Conversation;
  message: Message;
}

export function Continue({ conversation, message }: Properties) {
  if (!canGoOn(message)) return null;
  return (
    <button type="button" class="quiet" disabled={writing.value !== null} onClick={() => void goOn(conversation, message)}>
      Continue
    </button>
  );
}

export function Delete({ conversation, message }: Properties) {
  return (
    <button type="button" class="quiet" disabled={writing.value !== null} onClick={() => remove(conversation, message)}>
      Delete
    </button>
  );
}

function remove(conversation: Conversation, message: Message): void {
  const left = without(conversation, message);
  const count = Object.keys(conversation.messages).length - Object.keys(left.messages).length;
  replace(left);
  offerUndo(count === 1 ? "a message" : `${count} messages`, () => {
    const now = conversationOf(conversation.id);
    if (now === undefined) return;
    // In their old order, in which parents come first; what was written since stays.
    const messages = { ...conversation.messages, ...now.messages };
    replace({ ...now, messages, chosen: { ...now.chosen, ...conversation.chosen } });
  });
}
