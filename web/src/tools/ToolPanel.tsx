// The tools that the model may call, as JSON, and whether it has to.
import { EXAMPLE } from "./tools";
import { isClashing, setTools, toolNames, toolSettings, toolTrouble, whyNoCalls } from "./toolSettings";

export function ToolPanel() {
  const { text, choice, parallel } = toolSettings.value;
  const names = toolNames.value;
  const trouble = toolTrouble.value;
  return (
    <section class="tool-settings" aria-label="Tools">
      {whyNoCalls.value !== null && <p class="error">The served model cannot call tools, so none are sent: {whyNoCalls.value}.</p>}
      <label>
        Tools, as JSON
        <textarea
          class="code"
          rows={text === "" ? 3 : 12}
          spellcheck={false}
          placeholder="A list, in the form of OpenAI's `tools`"
          value={text}
          aria-invalid={trouble !== null}
          aria-describedby="tools-said"
          onInput={(event) => setTools({ text: event.currentTarget.value })}
        />
      </label>
      <div id="tools-said" role="status">
        {trouble !== null && (
          <div class="verdict bad">
            <p>✗ {trouble.message}</p>
            {trouble.place?.line != null && (
              <>
                <p>
                  Line {trouble.place.line}, column {trouble.place.column}
                </p>
                <pre class="sample" tabIndex={0}>{`${trouble.place.source}\n${" ".repeat(Math.max(0, (trouble.place.column ?? 1) - 1))}^`}</pre>
              </>
            )}
          </div>
        )}
        {names.length > 0 && (
          <p class="hint">
            ✓ {names.length === 1 ? "One tool" : `${names.length} tools`}: {names.join(", ")}
          </p>
        )}
      </div>
      <div class="row">
        <button type="button" disabled={text === EXAMPLE} onClick={() => setTools({ text: EXAMPLE, choice: "required" })}>
          Take an example
        </button>
        <button type="button" disabled={text === ""} onClick={() => setTools({ text: "", choice: "auto" })}>
          No tools
        </button>
      </div>
      {names.length > 0 && (
        <>
          <label>
            Whether it calls
            <select value={choice} onChange={(event) => setTools({ choice: event.currentTarget.value })}>
              <option value="auto">may call (auto)</option>
              <option value="required">must call one (required)</option>
              {names.map((name) => (
                <option key={name} value={name}>
                  must call {name}
                </option>
              ))}
              <option value="none">may not call (none)</option>
            </select>
          </label>
          <label class="inline">
            <input type="checkbox" checked={parallel} onChange={(event) => setTools({ parallel: event.currentTarget.checked })} />
            Several calls in one answer
          </label>
          <p class="hint">You are the tool: a call waits for the result that you type. Behind a result the model may always answer. Small models rarely call unless
            they must.</p>
          {isClashing.value && (
            <p class="error">There is a constraint as well: the server refuses both at once.</p>
          )}
        </>
      )}
    </section>
  );
}
