// An answer as its tokens: colour for the probability, rivals of the one that is pointed at.
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { Token } from "./token";
import { percent, visible } from "./token";

// More elements than this make a page slow; a longer answer shows its first ones.
const MAX_SHOWN = 4000;
const WORDS = {
  forced: "forced: the constraint left this token alone",
  steered: "steered: the constraint excluded the model's favourite",
  free: "the constraint allowed the model's favourite",
} as const;

function level(logprob: number | null): string {
  if (logprob === null) return "none";
  const probability = Math.exp(logprob);
  const bounds = [0.05, 0.2, 0.5, 0.8];
  return String(bounds.filter((bound) => probability >= bound).length);
}

function name(token: Token): string {
  const parts = [visible(token.text)];
  if (token.logprob !== null) parts.push(percent(token.logprob));
  if (token.choice === "forced" || token.choice === "steered") parts.push(token.choice);
  return parts.join(", ");
}

export function TokenText({ tokens }: { tokens: Token[] }) {
  const [at, setAt] = useState<number | null>(null);
  const shown = tokens.slice(0, MAX_SHOWN);
  const current = at === null ? undefined : shown[at];

  function onKeyDown(event: KeyboardEvent): void {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined || at === null) return;
    const next = Math.min(shown.length - 1, Math.max(0, at + step));
    const list = event.currentTarget as HTMLElement;
    list.querySelectorAll<HTMLElement>(".token").item(next).focus();
    event.preventDefault();
  }

  return (
    <div class="tokens">
      <div class="token-list" role="group" aria-label="Tokens of the answer; arrow keys move" onKeyDown={onKeyDown}>
        {shown.map((token, index) => (
          <Fragment key={index}>
            <button
              type="button"
              class={`token level-${level(token.logprob)} ${token.choice ?? ""}`}
              tabIndex={index === (at ?? 0) ? 0 : -1}
              aria-label={name(token)}
              onFocus={() => setAt(index)}
              onMouseEnter={() => setAt(index)}
            >
              {token.text === "" ? "·" : token.text.replaceAll("\n", "⏎")}
            </button>
            {/* A button breaks its own text alone. */}
            {token.text.includes("\n") && <br />}
          </Fragment>
        ))}
      </div>
      {tokens.length > MAX_SHOWN && <p class="hint">{tokens.length - MAX_SHOWN} more tokens are not shown.</p>}
      {current === undefined ? <Legend /> : <Rivals token={current} />}
    </div>
  );
}

function Legend() {
  return (
    <p class="legend hint">
      Probability:
      {["under 5 %", "5 %", "20 %", "50 %", "80 %"].map((text, index) => (
        <span key={text} class={`token level-${index}`}>
          {text}
        </span>
      ))}
      <span class="token steered">steered</span>
      <span class="token forced">forced</span>
    </p>
  );
}

function Rivals({ token }: { token: Token }) {
  return (
    <div class="rivals">
      <p>
        <code>{visible(token.text)}</code>
        {token.logprob !== null && <> {percent(token.logprob)}</>}
        {token.choice !== null && <> — {WORDS[token.choice]}</>}
      </p>
      <table>
        <tbody>
          {token.rivals.map((rival, index) => (
            <tr key={index} class={rival.text === token.text ? "chosen" : ""}>
              <td>
                <code>{visible(rival.text)}</code>
              </td>
              <td class="number">{percent(rival.logprob)}</td>
              <td>
                <meter min={0} max={1} value={Math.exp(rival.logprob)} aria-label={percent(rival.logprob)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
