// Asks for the API key once the server has refused a request without a right one.
import { useEffect, useRef } from "preact/hooks";
import { isKeyRefused, isKeyWanted, storeKey } from "../api/key";

/** `onKey`: whether the server takes the key that is now stored. */
export function KeyDialog({ onKey }: { onKey: () => Promise<boolean> }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const isWanted = isKeyWanted.value;
  useEffect(() => {
    if (isWanted) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isWanted]);
  async function take(event: SubmitEvent): Promise<void> {
    event.preventDefault();
    const field = (event.currentTarget as HTMLFormElement).elements.namedItem("key") as HTMLInputElement;
    storeKey(field.value.trim());
    if (await onKey()) isKeyWanted.value = false;
    else field.select();
  }
  return (
    <dialog ref={dialog} aria-labelledby="key-title" onClose={() => (isKeyWanted.value = false)}>
      <form onSubmit={(event) => void take(event)}>
        <h2 id="key-title">This server needs an API key</h2>
        <p class="hint">It is kept in this browser and sent to this server alone.</p>
        <label>
          API key
          <input name="key" type="password" autocomplete="off" required aria-invalid={isKeyRefused.value} />
        </label>
        {isKeyRefused.value && (
          <p class="error" role="alert">
            This key was refused.
          </p>
        )}
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
