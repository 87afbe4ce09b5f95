// Asks for the API key once the server has refused a request without a right one.
import { useEffect, useRef } from "preact/hooks";
import { isKeyWanted, storeKey } from "../api/key";

export function KeyDialog({ onKey }: { onKey: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isWanted = isKeyWanted.value;
  useEffect(() => {
    if (isWanted) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isWanted]);
  function take(event: SubmitEvent): void {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("key") as HTMLInputElement;
    storeKey(field.value.trim());
    onKey();
  }
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onClose={() => (isKeyWanted.value = false)}>
      <form onSubmit={take}>
        <h2 id="key-title">This server needs an API key</h2>
        <p class="hint">It is kept in this browser and sent to this server alone.</p>
        <label>
          API key
          <input name="key" type="password" autocomplete="off" required />
        </label>
        <div class="row">
          <button type="submit" class="primary">
            Use it
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            Cancel
          </button>
        </div>
      </form>
    </dialog>
  );
}
