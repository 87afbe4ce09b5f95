// The one place for settings: model, view, constraint, parameters, and the request as code.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { modelName, models, servedName } from "../api/model";
import { ConstraintPanel } from "../constraints/ConstraintPanel";
import type { SnippetKind } from "../constraints/snippets";
import { snippet, SNIPPETS } from "../constraints/snippets";
import { ToolPanel } from "../tools/ToolPanel";
import { abridged } from "../files/picture";
import { Copy } from "../ui/Copy";
import { Side } from "../ui/Side";
import { ThemeButton } from "../ui/ThemeButton";
import { chatBody } from "./answer";
import { branch } from "./conversation";
import { ParameterPanel } from "./ParameterPanel";
import { current } from "./store";
import { showsTokens } from "./view";

/** `children`: sections of one view alone. */
export function SettingsSide({ children }: { children?: ComponentChildren }) {
  return (
    <Side name="settings" label="Settings">
      <label>
        Model
        <select value={servedName() ?? ""} onChange={(event) => (modelName.value = event.currentTarget.value)}>
          {models.value.map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      </label>
      <label class="inline">
        <input type="checkbox" checked={showsTokens.value} onChange={(event) => (showsTokens.value = event.currentTarget.checked)} />
        Show tokens and their probabilities
      </label>
      {children}
      <details id="settings-constraint" open>
        <summary>Constraint</summary>
        <ConstraintPanel />
      </details>
      <details id="settings-tools">
        <summary>Tools</summary>
        <ToolPanel />
      </details>
      <details id="settings-parameters">
        <summary>Parameters</summary>
        <ParameterPanel />
      </details>
      <details>
        <summary>As code</summary>
        <Snippet />
      </details>
      {/* Where the header has no room for them. */}
      <div class="row smallest">
        <ThemeButton />
        <a href="docs">API</a>
      </div>
    </Side>
  );
}

function Snippet() {
  const [kind, setKind] = useState<SnippetKind>("curl");
  const messages = branch(current.value);
  const asked = messages.at(-1)?.role === "assistant" ? messages.slice(0, -1) : messages;
  const text = snippet(kind, document.baseURI.replace(/[^/]*$/, ""), abridged(chatBody(current.value, asked)));
  return (
    <div class="snippet">
      <div class="row">
        <label>
          For
          <select value={kind} onChange={(event) => setKind(event.currentTarget.value as SnippetKind)}>
            {Object.entries(SNIPPETS).map(([value, name]) => (
              <option key={value} value={value}>
                {name}
              </option>
            ))}
          </select>
        </label>
        <Copy text={() => text} />
      </div>
      <pre tabIndex={0}>{text}</pre>
    </div>
  );
}
