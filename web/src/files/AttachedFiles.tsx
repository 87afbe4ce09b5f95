// The files of the next message, each of which can be left out, and those that could not be read.
import { fixed } from "../ui/numbers";
import type { MessageFile } from "./attached";
import { attached, fileTroubles } from "./attached";
import { isPicture } from "./picture";
import type { TextFile } from "./textFile";

export function AttachedFiles() {
  return (
    <>
      {attached.value.length > 0 && (
        <ul class="attached" aria-label="Attached files">
          {attached.value.map((file, index) => (
            <li key={index}>
              {isPicture(file) ? <img src={file.url} alt="" /> : null}
              {file.name} {isPicture(file) ? null : <small>{sizeOf(file)}</small>}
              <button
                type="button"
                class="quiet"
                aria-label={`Leave out ${file.name}`}
                onClick={() => (attached.value = attached.value.filter((other) => other !== file))}
              >
                ✕
              </button>
            </li>
          ))}
        </ul>
      )}
      {fileTroubles.value.map((trouble) => (
        <p key={trouble} class="error" role="alert">
          {trouble}
        </p>
      ))}
    </>
  );
}

/** The files of a message that was sent: texts folded, images small. */
export function SentFiles({ files }: { files: readonly MessageFile[] }) {
  return (
    <>
      {files.map((file, index) =>
        isPicture(file) ? (
          <img key={index} class="sent-picture" src={file.url} alt={file.name} title={file.name} />
        ) : (
          <details key={index} class="sent-file">
            <summary>
              {file.name} <small>{sizeOf(file)}</small>
            </summary>
            <pre tabIndex={0}>{file.text}</pre>
          </details>
        ),
      )}
    </>
  );
}

function sizeOf({ text }: TextFile): string {
  const { size } = new Blob([text]);
  return size < 1000 ? `${size} B` : `${fixed(size / 1000, 1)} kB`;
}
