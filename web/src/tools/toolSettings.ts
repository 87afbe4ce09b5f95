// The tools of the next answers, as they were typed and kept, and the fields of a request.
import { computed, effect, signal } from "@preact/signals";
import { isObject } from "../api/errors";
import { info } from "../api/model";
import { constraint, grammarOf } from "../constraints/constraint";
import { readTools } from "./tools";

export interface ToolSettings {
  /** JSON: a list as OpenAI's `tools`. */
  text: string;
  /** `auto`, `required`, `none`, or the name of the tool to call. */
  choice: string;
  parallel: boolean;
}

const NONE: ToolSettings = { text: "", choice: "auto", parallel: true };
const NAME = "tandem.tools";

function load(): ToolSettings {
  try {
    const stored: unknown = JSON.parse(localStorage.getItem(NAME) ?? "null");
    return { ...NONE, ...(isObject(stored) ? stored : {}) };
  } catch {
    return NONE;
  }
}

export const toolSettings = signal<ToolSettings>(load());
effect(() => localStorage.setItem(NAME, JSON.stringify(toolSettings.value)));

export function setTools(fields: Partial<ToolSettings>): void {
  toolSettings.value = { ...toolSettings.value, ...fields };
}

const read = computed(() => readTools(toolSettings.value.text));
export const toolNames = computed(() => ("names" in read.value ? read.value.names : []));
export const toolTrouble = computed(() => ("trouble" in read.value ? read.value.trouble : null));
/** Why the served model cannot call; null: it can, or nobody knows. */
export const whyNoCalls = computed(() => {
  const { calls } = info.value;
  return isObject(calls) && calls.form === null ? String(calls.reason ?? "its chat template shows no calls") : null;
});

/** Whether a constraint is on as well, which the server refuses. */
export const isClashing = computed(() => toolNames.value.length > 0 && toolSettings.value.choice !== "none" && grammarOf(constraint.value) !== null);

/**
 * The fields of a request. `isFree`: it goes on behind a tool's result, or where an answer was cut; the
 * call that the model has to make has been made, and it may answer.
 */
export function toolFields(isFree: boolean): Record<string, unknown> {
  if (!("tools" in read.value) || read.value.tools.length === 0 || whyNoCalls.value !== null) return {};
  const { choice, parallel } = toolSettings.value;
  const isMade = isFree && choice !== "none";
  return {
    tools: read.value.tools,
    ...(choice === "auto" || isMade ? {} : { tool_choice: choiceOf(choice) }),
    ...(parallel ? {} : { parallel_tool_calls: false }),
  };
}

function choiceOf(choice: string): unknown {
  // A tool that was taken out since: the server says that it is none of them.
  const isWord = choice === "required" || choice === "none";
  return isWord ? choice : { type: "function", function: { name: choice } };
}
