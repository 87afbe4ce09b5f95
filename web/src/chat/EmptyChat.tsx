// A chat before its first message: what is served, and four prompts that it answers.
import { servedName } from "../api/model";
import { ask, writing } from "./answer";
import { prompts } from "./prompts";

export function EmptyChat() {
  return (
    <section class="empty" aria-label="To begin with">
      <h1>{servedName() ?? "Tandem"}</h1>
      <p class="hint">Ask something. Nothing leaves this server.</p>
      <div class="prompts">
        {prompts.value.map(({ title, text }) => (
          <button key={text} type="button" disabled={writing.value !== null} onClick={() => ask(text)}>
            <small>{title}</small>
            {text}
          </button>
        ))}
      </div>
    </section>
  );
}
