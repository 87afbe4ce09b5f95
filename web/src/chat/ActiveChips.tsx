// What the next answer is asked for with beside its messages, each with a way to it and a way out.
import type { ComponentChildren } from "preact";
import { verdict } from "../constraints/check";
import { constraint, grammarOf, KINDS, setConstraint } from "../constraints/constraint";
import { isClashing, setTools, toolNames, toolSettings, toolTrouble, whyNoCalls } from "../tools/toolSettings";
import { PARAMETERS, set, troubleOf, typed } from "./parameters";
import { current, replace } from "./store";
import type { Section } from "./view";
import { openSettings } from "./view";

/** `isChat`: whether a system prompt and tools are sent. */
export function ActiveChips({ isChat = false, children }: { isChat?: boolean; children?: ComponentChildren }) {
  const { kind, text } = constraint.value;
  const { system } = current.value;
  const changed = PARAMETERS.filter(({ name }) => typed.value[name] !== undefined);
  return (
    <div class="chips" role="group" aria-label="Active for the next answer">
      {children}
      {grammarOf(constraint.value) !== null && (
        <Chip
          name="Constraint"
          section="constraint"
          isWrong={verdict.value.state === "bad"}
          off="Turn the constraint off"
          onOff={() => setConstraint({ kind: "none" })}
        >
          {KINDS[kind]} <code>{text.replaceAll(/\s+/g, " ")}</code>
        </Chip>
      )}
      {isChat && toolSettings.value.text !== "" && whyNoCalls.value === null && (
        <Chip
          name="Tools"
          section="tools"
          isWrong={toolTrouble.value !== null || isClashing.value}
          off="Turn the tools off"
          onOff={() => setTools({ text: "", choice: "auto" })}
        >
          {toolNames.value.join(", ")}
        </Chip>
      )}
      {isChat && system.trim() !== "" && (
        <Chip name="System prompt" section="system" off="Remove the system prompt" onOff={() => replace({ ...current.value, system: "" })}>
          {system}
        </Chip>
      )}
      {changed.map((parameter) => {
        const { name, label, kind: type } = parameter;
        const value = typed.value[name] ?? "";
        return (
          <Chip
            key={name}
            name={label}
            section="parameters"
            isWrong={troubleOf(parameter, value) !== null}
            off={`Back to the default: ${label}`}
            onOff={() => set(name, "")}
          >
            {type === "switch" ? "" : value}
          </Chip>
        );
      })}
    </div>
  );
}

interface ChipProperties {
  name: string;
  /** Where it is set; absent: nowhere. */
  section?: Section;
  isWrong?: boolean;
  /** What its cross does. */
  off: string;
  onOff: () => void;
  children: ComponentChildren;
}

export function Chip({ name, section, isWrong = false, off, onOff, children }: ChipProperties) {
  const label = (
    <>
      {isWrong && "✗ "}
      <b>{name}</b> {children}
    </>
  );
  return (
    <span class={`chip ${isWrong ? "wrong" : ""}`}>
      {section === undefined ? (
        <span class="name" role="status">
          {label}
        </span>
      ) : (
        <button type="button" class="quiet name" onClick={() => openSettings(section)}>
          {label}
        </button>
      )}
      <button type="button" class="quiet off" aria-label={off} title={off} onClick={onOff}>
        ✕
      </button>
    </span>
  );
}
