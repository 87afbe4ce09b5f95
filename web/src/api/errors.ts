// Errors of the server, in the two shapes that it has: OpenAI's, and TGI's.

/** Where a constraint is wrong, as the server says it. */
export interface ConstraintTrouble {
  reason?: string;
  /** Characters into the constraint's text. */
  position?: number;
  /** JSON Pointer of what cannot be enforced. */
  pointer?: string;
  needed_len?: number;
  max_len?: number;
}

export class ServerError extends Error {
  readonly status: number;
  readonly code: string;
  readonly constraint: ConstraintTrouble | null;

  constructor(status: number, message: string, code: string, constraint: ConstraintTrouble | null) {
    super(message);
    this.status = status;
    this.code = code;
    this.constraint = constraint;
  }

  /** The error of a body, or of an event within a stream. */
  static of(status: number, body: unknown): ServerError {
    const fields = isObject(body) ? body : {};
    const inner = isObject(fields.error) ? fields.error : fields;
    const message = inner.message ?? inner.error ?? `the server answered ${status}`;
    const code = inner.code ?? inner.error_type ?? inner.type ?? "";
    const constraint = isObject(inner.constraint) ? inner.constraint : null;
    return new ServerError(status, String(message), String(code), constraint);
  }
}

/** An error as it is shown. */
export function sentence(error: unknown): string {
  return error instanceof ServerError ? error.message : "The server does not answer. Is it running?";
}

export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
