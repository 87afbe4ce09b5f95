// An answer as its tokens: colour for the probability, rivals of the one that is pointed at.
import { Fragment } from "preact";
import { useEffect, useId, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Token } from "./token";
import { probability, visible } from "./token";

// More elements than this make a page slow; a longer answer shows its first ones.
const MAX_SHOWN = 4000;
const GAP_PX = 6;
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
  if (token.logprob !== null) parts.push(probability(token.logprob));
  if (token.choice === "forced" || token.choice === "steered") parts.push(token.choice);
  return parts.join(", ");
}

/** `isGrowing`: more tokens come, below which nothing stands that they would move. */
export function TokenText({ tokens, isGrowing }: { tokens: Token[]; isGrowing: boolean }) {
  // The token that Tab comes to, and the one whose rivals are shown.
  const [at, setAt] = useState(0);
  const [pointed, setPointed] = useState<HTMLElement | null>(null);
  const id = useId();
  const shown = tokens.slice(0, MAX_SHOWN);
  const current = pointed === null ? undefined : shown[at];

  function point(index: number, element: HTMLElement): void {
    setAt(index);
    setPointed(element);
  }

  function onKeyDown(event: KeyboardEvent): void {
    if (event.key === "Escape" && pointed !== null) {
      // It would stop an answer.
      event.stopPropagation();
      setPointed(null);
    }
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step === undefined) return;
    const next = Math.min(shown.length - 1, Math.max(0, at + step));
    const list = event.currentTarget as HTMLElement;
    list.querySelectorAll<HTMLElement>(".token").item(next).focus();
    event.preventDefault();
  }

  return (
    <div class="tokens">
      <div
        class="token-list"
        role="group"
        aria-label="Tokens of the answer; arrow keys move"
        onKeyDown={onKeyDown}
        onMouseLeave={() => setPointed(null)}
        onFocusOut={() => setPointed(null)}
      >
        {shown.map((token, index) => (
          <Fragment key={index}>
            <button
              type="button"
              class={`token level-${level(token.logprob)} ${token.choice ?? ""}`}
              tabIndex={index === at ? 0 : -1}
              aria-label={name(token)}
              aria-describedby={current !== undefined && index === at ? id : undefined}
              onFocus={(event) => point(index, event.currentTarget)}
              onMouseEnter={(event) => point(index, event.currentTarget)}
            >
              {token.text === "" ? "·" : token.text.replaceAll("\n", "⏎")}
            </button>
            {/* A button breaks its own text alone. */}
            {token.text.includes("\n") && <br />}
          </Fragment>
        ))}
      </div>
      {tokens.length > MAX_SHOWN && <p class="hint">{tokens.length - MAX_SHOWN} more tokens are not shown.</p>}
      {!isGrowing && <Legend />}
      {pointed !== null && current !== undefined && <Rivals key={at} id={id} token={current} beside={pointed} />}
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

/** Puts a box below an element, or above it where there is no room. */
function place(box: HTMLElement, { left, top, bottom }: DOMRect): void {
  const below = bottom + GAP_PX;
  const isBelow = below + box.offsetHeight <= innerHeight;
  const y = isBelow ? below : Math.max(0, top - GAP_PX - box.offsetHeight);
  const x = Math.max(GAP_PX, Math.min(left, innerWidth - box.offsetWidth - GAP_PX));
  box.style.transform = `translate(${x}px, ${y}px)`;
}

/** Over the page, so that nothing of it moves. */
function Rivals({ id, token, beside }: { id: string; token: Token; beside: HTMLElement }) {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (box.current !== null) place(box.current, beside.getBoundingClientRect());
  });
  useEffect(() => {
    const follow = () => box.current !== null && place(box.current, beside.getBoundingClientRect());
    addEventListener("scroll", follow, { capture: true, passive: true });
    return () => removeEventListener("scroll", follow, { capture: true });
  }, [beside]);
  return (
    <div class="rivals" ref={box} id={id} role="tooltip">
      <p>
        <code>{visible(token.text)}</code>
        {token.logprob !== null && <> {probability(token.logprob)}</>}
        {token.choice !== null && <> — {WORDS[token.choice]}</>}
      </p>
      <table>
        <tbody>
          {token.rivals.map((rival, index) => (
            <tr key={index} class={rival.text === token.text ? "chosen" : ""}>
              <td>
                <code>{visible(rival.text)}</code>
              </td>
              <td class="number">{probability(rival.logprob)}</td>
              <td>
                <meter min={0} max={1} value={Math.exp(rival.logprob)} aria-label={probability(rival.logprob)} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
