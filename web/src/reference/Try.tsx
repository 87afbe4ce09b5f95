// A request of an operation, written here and sent, and its answer while it comes.
import { useContext, useRef, useState } from "preact/hooks";
import { storedKey } from "../api/key";
import { request } from "../api/server";
import { Copy } from "../ui/Copy";
import { fixed } from "../ui/numbers";
import type { Operation, Parameter, Schema } from "./document";
import { Known } from "./SchemaView";

const FORM = "multipart/form-data";

const NONE = { status: "", text: "" };

export function Try({ operation }: { operation: Operation }) {
  const { method, parameters = [], requestBody } = operation;
  const known = useContext(Known);
  const form = useRef<HTMLFormElement>(null);
  const stopper = useRef<AbortController | null>(null);
  const [answer, setAnswer] = useState(NONE);
  const [isBusy, setBusy] = useState(false);
  const [[type, content] = []] = Object.entries(requestBody?.content ?? {});
  const schema = content?.schema;

  async function send(event: SubmitEvent): Promise<void> {
    event.preventDefault();
    const { path, headers, body } = written(operation, type, new FormData(form.current ?? undefined));
    const controller = new AbortController();
    stopper.current = controller;
    const begunMs = performance.now();
    setBusy(true);
    setAnswer(NONE);
    try {
      const response = await request(path, { method, headers, body, signal: controller.signal });
      const kind = response.headers.get("content-type") ?? "";
      let text = "";
      for await (const piece of pieces(response)) {
        text += piece;
        const status = `${response.status} ${response.statusText} · ${kind} · ${fixed((performance.now() - begunMs) / 1000, 2)} s`;
        setAnswer({ status, text: kind.startsWith("application/json") ? laidOut(text) : text });
      }
    } catch (error) {
      if (!controller.signal.aborted) setAnswer({ ...NONE, status: `No answer: ${String(error)}` });
    } finally {
      setBusy(false);
    }
  }
  const shell = () => curl(operation, type, new FormData(form.current ?? undefined));
  return (
    <section class="try" aria-label="Try it">
      <form ref={form} onSubmit={(event) => void send(event)}>
        {parameters.map((each) => (
          <ParameterField key={each.name} parameter={each} />
        ))}
        {schema !== undefined && type !== FORM && (
          <label>
            Body
            <textarea class="code" name="body" rows={6} spellcheck={false}>
              {JSON.stringify(known.exampleOf(schema), null, 2)}
            </textarea>
          </label>
        )}
        {schema !== undefined && type === FORM && Object.entries(schema.properties ?? {}).map(([name, each]) => <FormField key={name} name={name} schema={each} />)}
        <div class="row">
          <button type="submit" class="primary" disabled={isBusy}>
            Send
          </button>
          <Copy text={shell} label="Copy as curl" />
          {isBusy && (
            <button type="button" onClick={() => stopper.current?.abort()}>
              Stop
            </button>
          )}
        </div>
      </form>
      <p class="hint" role="status">
        {answer.status}
      </p>
      <pre class="answer" tabIndex={0} aria-label="Answer">
        {answer.text}
      </pre>
    </section>
  );
}

function ParameterField({ parameter: { name, required = false, description } }: { parameter: Parameter }) {
  return (
    <label>
      <code>{name}</code> {description !== undefined && <span class="hint">{description}</span>}
      <input type="text" name={name} required={required} autocomplete="off" />
    </label>
  );
}

function FormField({ name, schema }: { name: string; schema: Schema }) {
  const isFile = schema.contentMediaType !== undefined;
  return (
    <label>
      <code>{name}</code>
      {isFile ? <input type="file" name={name} required /> : <input type="text" name={name} value={String(schema.const ?? "")} />}
    </label>
  );
}

/** What was written into the form, as a request has it. */
function written({ path, parameters = [] }: Operation, type: string | undefined, form: FormData) {
  const headers = new Headers(type === undefined || type === FORM ? {} : { "content-type": type });
  const query = new URLSearchParams();
  for (const { name, in: place } of parameters) {
    const value = String(form.get(name) ?? "");
    form.delete(name);
    if (place === "path") path = path.replace(`{${name}}`, encodeURIComponent(value).replaceAll("%2F", "/"));
    else if (value !== "") (place === "query" ? query : headers).append(name, value);
  }
  const body = type === undefined ? null : type === FORM ? form : String(form.get("body") ?? "");
  // Relative: a proxy may have put the server below a prefix.
  return { path: `.${path}${query.size > 0 ? `?${query.toString()}` : ""}`, headers, body };
}

function curl(operation: Operation, type: string | undefined, form: FormData): string {
  const { path, headers, body } = written(operation, type, form);
  if (storedKey() !== null) headers.set("authorization", "Bearer $TANDEM_API_KEY");
  const fields = body instanceof FormData ? [...body].map(([name, value]) => `-F '${name}=${value instanceof File ? `@${value.name}` : value}'`) : [];
  return [
    `curl -X ${operation.method} '${new URL(path, document.baseURI).href}'`,
    ...[...headers].map(([name, value]) => `-H "${name}: ${value}"`),
    ...fields,
    ...(typeof body === "string" ? [`-d '${body.replaceAll("'", "'\\''")}'`] : []),
  ].join(" \\\n  ");
}

/** The pieces of a text as they come; at least an empty one. */
async function* pieces(response: Response): AsyncGenerator<string> {
  yield "";
  const decoder = new TextDecoder();
  const reader = response.body?.getReader();
  for (;;) {
    const read = await reader?.read();
    if (read?.value === undefined) return;
    yield decoder.decode(read.value, { stream: true });
  }
}

function laidOut(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    // Not all of it is here.
    return json;
  }
}
