// What was deleted last, for the few seconds in which that can be undone.
import { signal } from "@preact/signals";

export interface Deleted {
  name: string;
  restore: () => void;
}

const SHOWN_MS = 12_000;

export const deleted = signal<Deleted | null>(null);
let timer: ReturnType<typeof setTimeout> | undefined;

export function offerUndo(name: string, restore: () => void): void {
  clearTimeout(timer);
  deleted.value = { name, restore };
  timer = setTimeout(() => (deleted.value = null), SHOWN_MS);
}

export function undo(): void {
  deleted.value?.restore();
  deleted.value = null;
}
