// Where a constraint is wrong, and why, from what the server says.

/** A place in the constraint's text: a pointer into a schema, or a line and column from 1. */
export interface Place {
  pointer: string | null;
  line: number | null;
  column: number | null;
  /** The line itself. */
  source: string | null;
}

/** The reason alone: the field is known here, and the place is shown in its line. */
export function reasonOf(message: string): string {
  const reason = message.split("\n")[0] ?? "";
  return reason.replace(/^(Input validation error: )?`grammar`: (position \d+: )?/, "");
}

export function placeOf(text: string, position: number | undefined, pointer: string | undefined): Place | null {
  if (pointer !== undefined) return { pointer, line: null, column: null, source: null };
  if (position === undefined) return null;
  // The server counts characters, JavaScript UTF-16.
  const characters = [...text];
  const lines = characters.slice(0, position).join("").split("\n");
  return {
    pointer: null,
    line: lines.length,
    column: [...(lines.at(-1) ?? "")].length + 1,
    source: text.split("\n")[lines.length - 1] ?? "",
  };
}
