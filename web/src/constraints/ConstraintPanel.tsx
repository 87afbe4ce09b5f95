// The panel beside a chat: what the next answer has to be, and what the server says of that.
import { useEffect } from "preact/hooks";
import { visible } from "../tokens/token";
import type { Verdict } from "./check";
import { tried, verdict, watch } from "./check";
import type { Constraint, Kind } from "./constraint";
import { constraint, KINDS, setConstraint } from "./constraint";
import { EXAMPLES } from "./examples";
import type { Judgement } from "./judgement";

export function ConstraintPanel() {
  useEffect(watch, []);
  const { kind, text } = constraint.value;
  return (
    <section class="constraint" aria-label="Constraint">
      <label>
        Language
        <select value={kind} onChange={(event) => setConstraint({ kind: event.currentTarget.value as Kind })}>
          {Object.entries(KINDS).map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
        </select>
      </label>
      <label>
        Example
        <select value="" onChange={(event) => takeExample(event.currentTarget)}>
          <option value="">Choose one …</option>
          {EXAMPLES.map(({ name }) => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      {kind !== "none" && (
        <>
          <label>
            Constraint
            <textarea
              class="code text"
              rows={4}
              spellcheck={false}
              placeholder={kind === "choice" ? "One a line" : ""}
              value={text}
              onInput={(event) => setConstraint({ text: event.currentTarget.value })}
            />
          </label>
          <VerdictBox value={verdict.value} />
          <label>
            Try a text
            <textarea
              class="code"
              rows={2}
              spellcheck={false}
              value={tried.value}
              onInput={(event) => {
                tried.value = event.currentTarget.value;
              }}
            />
          </label>
          <Options value={constraint.value} />
        </>
      )}
    </section>
  );
}

function takeExample(select: HTMLSelectElement): void {
  const example = EXAMPLES.find(({ name }) => name === select.value);
  if (example !== undefined) setConstraint(example.constraint);
  select.value = "";
}

function Options({ value }: { value: Constraint }) {
  return (
    <div class="options">
      {value.kind === "json" && (
        <>
          <label class="inline">
            <input
              type="checkbox"
              checked={value.lenient}
              onChange={(event) => setConstraint({ lenient: event.currentTarget.checked })}
            />
            lenient
          </label>
          <p class="hint">
            Lenient: what cannot be enforced is left to a check of the finished answer, which then says whether it is
            satisfied. Otherwise such a schema is refused.
          </p>
          <label>
            Whitespace
            <select
              value={value.whitespace}
              onChange={(event) => setConstraint({ whitespace: event.currentTarget.value as Constraint["whitespace"] })}
            >
              <option value="">flexible (default)</option>
              <option value="compact">compact</option>
              <option value="spaced">spaced</option>
            </select>
          </label>
        </>
      )}
      <label>
        When the tokens run out
        <select
          value={value.onBudget}
          onChange={(event) => setConstraint({ onBudget: event.currentTarget.value as Constraint["onBudget"] })}
        >
          <option value="">finish in time (default)</option>
          <option value="cut">cut</option>
        </select>
      </label>
    </div>
  );
}

function VerdictBox({ value }: { value: Verdict }) {
  return (
    <div class={`verdict ${value.state}`} role="status">
      {value.state === "waiting" && <p>Checking …</p>}
      {value.state === "unknown" && <p>{value.message}</p>}
      {value.state === "good" && <Good value={value} />}
      {value.state === "bad" && <Bad value={value} />}
    </div>
  );
}

function Good({ value }: { value: Extract<Verdict, { state: "good" }> }) {
  return (
    <>
      <p>
        ✓ Can be satisfied{value.minTokens !== null && <>, in {value.minTokens} tokens</>}.
      </p>
      {value.shortest !== null && (
        <p>
          Shortest text found: <code class="sample">{value.shortest === "" ? "(empty)" : value.shortest}</code>
        </p>
      )}
      {value.notEnforced.length > 0 && (
        <p>
          Not enforced, but checked at the end:{" "}
          {value.notEnforced.map((pointer) => (
            <code key={pointer}>{pointer || "/"} </code>
          ))}
        </p>
      )}
      {value.text !== null && <Tried value={value.text} />}
    </>
  );
}

function Tried({ value }: { value: Judgement }) {
  if (value.state === "satisfied") return <p>✓ The tried text satisfies it.</p>;
  if (value.state === "broken") return <p>✗ The tried text does not satisfy it: {value.failure}</p>;
  const next = value.expected.length === 0 ? "nothing" : <code>{value.expected.join(", ")}</code>;
  if (value.state === "unfinished") return <p>… Not finished: {next} may follow.</p>;
  return (
    <p>
      ✗ Wrong at character {value.at}, <code>{visible(value.character)}</code>; expected: {next}.
    </p>
  );
}

function Bad({ value }: { value: Extract<Verdict, { state: "bad" }> }) {
  const { place } = value;
  return (
    <>
      <p>✗ {value.message}</p>
      {place?.pointer != null && (
        <p>
          At <code>{place.pointer || "/"}</code>
        </p>
      )}
      {place?.line != null && (
        <>
          <p>
            Line {place.line}, column {place.column}
          </p>
          <pre class="sample">{`${place.source}\n${" ".repeat(Math.max(0, (place.column ?? 1) - 1))}^`}</pre>
        </>
      )}
      {value.canBeLenient && (
        <p>
          <button type="button" onClick={() => setConstraint({ lenient: true })}>
            Take it leniently
          </button>
        </p>
      )}
    </>
  );
}
