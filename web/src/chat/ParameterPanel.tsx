// The sampling parameters, each with its default.
import type { Parameter } from "./parameters";
import { fallbackOf, PARAMETERS, set, troubleOf, typed } from "./parameters";

export function ParameterPanel() {
  return (
    <section class="parameters" aria-label="Parameters">
      {PARAMETERS.map((parameter) => (
        <Field key={parameter.name} parameter={parameter} text={typed.value[parameter.name] ?? ""} />
      ))}
      <button type="button" disabled={Object.keys(typed.value).length === 0} onClick={() => (typed.value = {})}>
        Back to the defaults
      </button>
    </section>
  );
}

function Field({ parameter, text }: { parameter: Parameter; text: string }) {
  const { name, label, help, kind } = parameter;
  const fallback = fallbackOf(parameter);
  const trouble = troubleOf(parameter, text);
  const note = `note-${name}`;
  const described = { "aria-describedby": note, "aria-invalid": trouble !== null };
  if (kind === "switch") {
    return (
      <div class="field">
        <label class="inline">
          <input type="checkbox" checked={text === "on"} onChange={(event) => set(name, event.currentTarget.checked ? "on" : "")} {...described} />
          {label}
        </label>
        <small id={note}>{help}</small>
      </div>
    );
  }
  const isLong = kind === "list" || kind === "json";
  return (
    <div class="field">
      <label>
        {label}
        {kind === "choice" ? (
          <select value={text} onChange={(event) => set(name, event.currentTarget.value)} {...described}>
            <option value="">{fallback}</option>
            {parameter.options?.map((option) => (
              <option key={option}>{option}</option>
            ))}
          </select>
        ) : isLong ? (
          <textarea rows={2} value={text} placeholder={fallback} onInput={(event) => set(name, event.currentTarget.value)} {...described} />
        ) : (
          <input
            type="text"
            inputMode={kind === "integer" ? "numeric" : "decimal"}
            value={text}
            placeholder={fallback}
            onInput={(event) => set(name, event.currentTarget.value)}
            {...described}
          />
        )}
      </label>
      <small id={note} class={trouble === null ? "" : "wrong"}>
        {trouble ?? help}
      </small>
    </div>
  );
}
