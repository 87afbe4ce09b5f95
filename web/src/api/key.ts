// The API key: asked for once, kept in this browser, sent with every request.
import { signal } from "@preact/signals";

const NAME = "tandem.key";

export const isKeyWanted = signal(false);
/** Whether the key that was last sent was no right one. */
export const isKeyRefused = signal(false);

export function storedKey(): string | null {
  return localStorage.getItem(NAME);
}

export function storeKey(key: string): void {
  if (key === "") localStorage.removeItem(NAME);
  else localStorage.setItem(NAME, key);
}
