// Files for the next message: chosen, dropped on the page, or pasted.
import { useEffect, useRef, useState } from "preact/hooks";
import { sees } from "../api/model";
import { attach } from "./attached";

// Longer texts that are pasted are files.
const MAX_PASTED_LEN = 5_000;

export function AttachButton() {
  const [isOver, setOver] = useState(false);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const hasFiles = ({ dataTransfer }: DragEvent) => dataTransfer?.types.includes("Files") === true;
    function onDragOver(event: DragEvent): void {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    }
    function onDragLeave(event: DragEvent): void {
      // Not from one element of the page to another.
      if (event.relatedTarget === null) setOver(false);
    }
    function onDrop(event: DragEvent): void {
      setOver(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      void attach(event.dataTransfer?.files ?? []);
    }
    const ending = new AbortController();
    const { signal } = ending;
    addEventListener("dragover", onDragOver, { signal });
    addEventListener("dragleave", onDragLeave, { signal });
    addEventListener("drop", onDrop, { signal });
    picker.current?.form?.addEventListener("paste", onPaste, { signal });
    return () => ending.abort();
  }, []);
  return (
    <>
      {isOver && <div class="drop-place">{sees() ? "Images and text files" : "Text files"} become part of your message</div>}
      <button type="button" class="attach" aria-label="Attach files" title="Attach files" onClick={() => picker.current?.click()}>
        <span aria-hidden="true">+</span>
      </button>
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        aria-label="Files"
        onChange={(event) => {
          void attach([...(event.currentTarget.files ?? [])]);
          event.currentTarget.value = "";
        }}
      />
    </>
  );
}

function onPaste(event: ClipboardEvent): void {
  const files = [...(event.clipboardData?.files ?? [])];
  const text = event.clipboardData?.getData("text/plain") ?? "";
  if (files.length === 0 && text.length <= MAX_PASTED_LEN) return;
  event.preventDefault();
  void attach(files.length > 0 ? files : [new File([text], "pasted.txt", { type: "text/plain" })]);
}
