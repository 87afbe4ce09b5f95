// Says what was deleted, and brings it back.
import { deleted, undo } from "./undo";

export function UndoBar() {
  return (
    <div class="undo-place">
      {deleted.value !== null && (
        <p class="undo" role="status">
          <span>Deleted: {deleted.value.name}</span>
          <button type="button" onClick={undo}>
            Undo
          </button>
          <button type="button" class="quiet" aria-label="Close" onClick={() => (deleted.value = null)}>
            ✕
          </button>
        </p>
      )}
    </div>
  );
}
