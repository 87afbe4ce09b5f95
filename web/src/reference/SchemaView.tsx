// What a body or an answer holds: its fields, and theirs when they are unfolded.
import { createContext } from "preact";
import { useContext, useState } from "preact/hooks";
import { Markdown } from "../ui/Markdown";
import type { Schema } from "./document";
import { Schemas } from "./document";

export const Known = createContext(new Schemas({}));

export function SchemaView({ schema }: { schema: Schema }) {
  const known = useContext(Known);
  const objects = known.objectsOf(schema);
  return (
    <div class="schema">
      <p>
        <code>{known.typeOf(schema)}</code>
      </p>
      {objects.map((each, index) => (
        <Fields key={index} schema={each} isOneOfSeveral={objects.length > 1} />
      ))}
    </div>
  );
}

function Fields({ schema, isOneOfSeveral }: { schema: Schema; isOneOfSeveral: boolean }) {
  const known = useContext(Known);
  const { properties = {}, required = [], description } = known.resolved(schema);
  const names = [...required, ...Object.keys(properties).filter((name) => !required.includes(name))];
  return (
    <>
      {isOneOfSeveral && known.nameOf(schema) !== undefined && (
        <p>
          <strong>{known.nameOf(schema)}</strong>
        </p>
      )}
      {description !== undefined && <Markdown text={description} />}
      <ul class="fields">
        {names.map((name) => (
          <Field key={name} name={name} schema={properties[name] ?? {}} isRequired={required.includes(name)} />
        ))}
      </ul>
    </>
  );
}

function Field({ name, schema, isRequired }: { name: string; schema: Schema; isRequired: boolean }) {
  const known = useContext(Known);
  const objects = known.objectsOf(schema);
  const { description, default: fallback } = known.resolved(schema);
  return (
    <li>
      <code>{name}</code> <span class="hint">{known.typeOf(schema)}</span>
      {isRequired && <span class="hint"> · required</span>}
      {fallback != null && <span class="hint"> · default {JSON.stringify(fallback)}</span>}
      {objects.length > 0 ? (
        <Unfolded summary={`Fields of ${name}`}>
          {() => objects.map((each, index) => <Fields key={index} schema={each} isOneOfSeveral={objects.length > 1} />)}
        </Unfolded>
      ) : (
        description !== undefined && <Markdown text={description} />
      )}
    </li>
  );
}

/** Made when it is unfolded: schemas may hold themselves. */
export function Unfolded({ summary, children }: { summary: string; children: () => preact.ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{summary}</summary>
      {isOpen && children()}
    </details>
  );
}
