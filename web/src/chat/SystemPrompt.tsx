// The system message, which stands before the chat's first one.
import { current, replace } from "./store";

export function SystemPrompt() {
  const conversation = current.value;
  return (
    <details id="settings-system" open={conversation.system !== ""}>
      <summary>System prompt</summary>
      <textarea
        aria-label="System prompt"
        rows={3}
        placeholder="None. It is this chat's own."
        value={conversation.system}
        onInput={(event) => replace({ ...conversation, system: event.currentTarget.value })}
      />
    </details>
  );
}
