// Completion mode: a text that the model goes on with, as it is.
import { signal } from "@preact/signals";
import { isObject, sentence } from "../api/errors";
import { servedName } from "../api/model";
import { postForEvents } from "../api/server";
import { constraintField } from "../constraints/constraint";
import type { Token } from "../tokens/token";
import { completionTokens } from "../tokens/token";
import { TokenText } from "../tokens/TokenText";
import { ErrorText } from "../ui/ErrorText";
import { ActiveChips } from "./ActiveChips";
import { NUM_RIVALS } from "./answer";
import { fields } from "./parameters";
import { SettingsSide } from "./SettingsSide";
import { showsTokens } from "./view";

const prompt = signal("Once upon a time");
const output = signal("");
const tokens = signal<Token[]>([]);
const trouble = signal<string | null>(null);
const stopper = signal<AbortController | null>(null);

async function complete(): Promise<void> {
  const controller = new AbortController();
  stopper.value = controller;
  [output.value, tokens.value, trouble.value] = ["", [], null];
  const body = { model: servedName(), prompt: prompt.value, ...fields(), ...constraintField(), stream: true, logprobs: NUM_RIVALS };
  let text = "";
  const found: Token[] = [];
  const show = (): void => {
    [output.value, tokens.value] = [text, [...found]];
  };
  let isDue = false;
  try {
    for await (const chunk of postForEvents("v1/completions", body, controller.signal)) {
      const choice: unknown = isObject(chunk) && Array.isArray(chunk.choices) ? chunk.choices[0] : undefined;
      if (!isObject(choice)) continue;
      text += String(choice.text ?? "");
      found.push(...completionTokens(choice.logprobs));
      if (isDue) continue;
      isDue = true;
      requestAnimationFrame(() => {
        isDue = false;
        if (stopper.value === controller) show();
      });
    }
  } catch (error) {
    if (!controller.signal.aborted) trouble.value = sentence(error);
  }
  show();
  stopper.value = null;
}

function takeOver(): void {
  prompt.value += output.value;
  [output.value, tokens.value] = ["", []];
}

export function CompletionPanel() {
  const isBusy = stopper.value !== null;
  return (
    <div class="columns">
      <main class="completion" tabIndex={0}>
        <h1>Completion</h1>
        <label>
          Text
          <textarea
            rows={8}
            value={prompt.value}
            onInput={(event) => (prompt.value = event.currentTarget.value)}
            onKeyDown={(event) => {
              if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) void complete();
              if (event.key === "Escape") stopper.value?.abort();
            }}
          />
        </label>
        <ActiveChips />
        <div class="row">
          {isBusy ? (
            <button type="button" onClick={() => stopper.value?.abort()}>
              Stop
            </button>
          ) : (
            <button type="button" class="primary" disabled={prompt.value === ""} onClick={() => void complete()}>
              Complete
            </button>
          )}
          <button type="button" disabled={isBusy || output.value === ""} onClick={takeOver}>
            Go on from here
          </button>
          <span class="hint">Ctrl+Enter completes</span>
        </div>
        {trouble.value !== null && <ErrorText text={trouble.value} />}
        <section aria-label="Continuation" class="continuation">
          {showsTokens.value && tokens.value.length > 0 ? <TokenText tokens={tokens.value} isGrowing={isBusy} /> : <div class="plain">{output.value}</div>}
        </section>
      </main>
      <SettingsSide />
    </div>
  );
}
