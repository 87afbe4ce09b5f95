// Text files that go out as part of a message.

export interface TextFile {
  name: string;
  text: string;
}

// More would fill what the browser keeps, and most models' contexts.
const MAX_BYTES = 256 * 1024;

/** Throws Error with why a file cannot be part of a message. */
export async function readTextFile(file: File): Promise<TextFile> {
  const { name } = file;
  if (/^(audio|video)\//.test(file.type)) throw new Error(`${name}: only text and images are read, no ${file.type.split("/")[0]}`);
  if (file.size > MAX_BYTES) throw new Error(`${name}: a file may have ${MAX_BYTES / 1024} kB, this one has ${Math.ceil(file.size / 1024)}`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name, text };
  } catch {
    // Said below.
  }
  throw new Error(`${name}: is no text in UTF-8`);
}

/** A message's text, and behind it each file in a fence that nothing in it ends. */
export function withFiles(content: string, files: readonly TextFile[] = []): string {
  const parts = files.map(({ name, text }) => {
    const runs = text.match(/`{3,}/g) ?? [];
    const fence = "`".repeat(Math.max(2, ...runs.map((run) => run.length)) + 1);
    return `${name}:\n${fence}\n${text.replace(/\n$/, "")}\n${fence}`;
  });
  return [...(content === "" ? [] : [content]), ...parts].join("\n\n");
}
