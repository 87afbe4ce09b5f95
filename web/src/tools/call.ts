// A model's calls of tools: collected from a stream, laid out, and sent with the next turn.
import { applyEdits, format } from "jsonc-parser";
import { isObject } from "../api/errors";

export interface Call {
  id: string;
  name: string;
  /** JSON, as the model wrote it; while it is written, its beginning. */
  arguments: string;
}

/** The calls so far and a delta's `tool_calls`: a call's first piece has its id and name, others more of its arguments. */
export function withPieces(calls: Call[], pieces: unknown): Call[] {
  const found = [...calls];
  for (const piece of Array.isArray(pieces) ? pieces.filter(isObject) : []) {
    const index = Number(piece.index ?? 0);
    const { name, arguments: more } = isObject(piece.function) ? piece.function : {};
    const call = found[index] ?? { id: String(piece.id ?? ""), name: "", arguments: "" };
    found[index] = { ...call, name: call.name + String(name ?? ""), arguments: call.arguments + String(more ?? "") };
  }
  return found;
}

/** Whether nothing of a call's arguments is missing. */
export function isWhole(call: Call): boolean {
  try {
    JSON.parse(call.arguments);
    return true;
  } catch {
    return false;
  }
}

/** JSON, or its beginning, a member a line; numbers and texts stay as they were written. */
export function laidOut(json: string): string {
  return applyEdits(json, format(json, undefined, { insertSpaces: true, tabSize: 2 }));
}

export function sentCall({ id, name, arguments: json }: Call): Record<string, unknown> {
  return { id, type: "function", function: { name, arguments: json } };
}
