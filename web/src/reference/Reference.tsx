// Every operation of the API: what it reads and answers, and a form that sends it.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import { sentence } from "../api/errors";
import { getJson } from "../api/server";
import { ErrorText } from "../ui/ErrorText";
import { Markdown } from "../ui/Markdown";
import type { Content, OpenApi, Operation } from "./document";
import { operationsOf, Schemas } from "./document";
import { Known, SchemaView, Unfolded } from "./SchemaView";
import { Try } from "./Try";

const document = signal<OpenApi | null>(null);
const trouble = signal<string | null>(null);

/** Whether the server gave the document. */
export async function loadDocument(): Promise<boolean> {
  try {
    document.value = (await getJson("api-doc/openapi.json")) as OpenApi;
    trouble.value = null;
  } catch (error) {
    trouble.value = sentence(error);
  }
  return trouble.value === null;
}

export function Reference() {
  const [sought, setSought] = useState("");
  const found = document.value;
  if (found === null) return <main class="reference">{trouble.value === null ? <p class="hint">Loading …</p> : <ErrorText text={trouble.value} />}</main>;
  const words = sought.toLowerCase();
  const shown = operationsOf(found).filter(({ method, path, summary }) => `${method} ${path} ${summary}`.toLowerCase().includes(words));
  return (
    <Known.Provider value={new Schemas(found.components.schemas)}>
      <main class="reference" tabIndex={-1}>
        <h1>
          API of {found.info.title} <small>{found.info.version}</small>
        </h1>
        <Markdown text={found.info.description} />
        <p class="hint">
          As a document: <code>/api-doc/openapi.json</code>
        </p>
        <input type="search" aria-label="Search operations" placeholder="Search operations" value={sought} onInput={(event) => setSought(event.currentTarget.value)} />
        {found.tags.map(({ name, description }) => {
          const own = shown.filter(({ tags }) => tags.includes(name));
          if (own.length === 0) return null;
          return (
            <section key={name}>
              <h2>{name}</h2>
              <p class="hint">{description}</p>
              {own.map((operation) => (
                <OperationView key={operation.operationId} operation={operation} />
              ))}
            </section>
          );
        })}
        {shown.length === 0 && <p class="hint">No operation has this in its path or name.</p>}
      </main>
    </Known.Provider>
  );
}

/** Its id is in the address while it was the last to be unfolded. */
function OperationView({ operation }: { operation: Operation }) {
  const { method, path, summary, description, operationId, requestBody, responses } = operation;
  const details = useRef<HTMLDetailsElement>(null);
  const [isOpen, setOpen] = useState(location.hash === `#${operationId}`);
  useEffect(() => {
    if (isOpen) details.current?.scrollIntoView();
  }, []);
  function toggle(event: Event): void {
    const { open } = event.currentTarget as HTMLDetailsElement;
    setOpen(open);
    if (open) history.replaceState(null, "", `#${operationId}`);
  }
  return (
    <details ref={details} class="operation" open={isOpen} onToggle={toggle}>
      <summary>
        <span class="method">{method}</span> <code>{path}</code> <span class="summary">{summary}</span>
      </summary>
      {isOpen && (
        <div class="body">
          <Markdown text={description} />
          <Try operation={operation} />
          {requestBody !== undefined && (
            <>
              <h3>Body</h3>
              <ContentView content={requestBody.content} />
            </>
          )}
          <h3>Answers</h3>
          {Object.entries(responses).map(([status, { description, content = {} }]) => (
            <Unfolded key={status} summary={`${status} ${description}`}>
              {() => <ContentView content={content} />}
            </Unfolded>
          ))}
        </div>
      )}
    </details>
  );
}

function ContentView({ content }: { content: Content }) {
  const all = Object.entries(content);
  if (all.length === 0) return <p class="hint">Nothing.</p>;
  return (
    <>
      {all.map(([type, { schema, itemSchema }]) => (
        <div key={type}>
          <p class="hint">
            {type}
            {itemSchema !== undefined && ", each event"}
          </p>
          <SchemaView schema={schema ?? itemSchema ?? {}} />
        </div>
      ))}
    </>
  );
}
