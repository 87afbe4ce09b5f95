// The files of the next message.
import { signal } from "@preact/signals";
import type { TextFile } from "./textFile";
import { readTextFile } from "./textFile";

export const attached = signal<TextFile[]>([]);
/** Why files were left out. */
export const fileTroubles = signal<string[]>([]);

export async function attach(files: Iterable<File>): Promise<void> {
  fileTroubles.value = [];
  for (const file of files) {
    try {
      const read = await readTextFile(file);
      attached.value = [...attached.value, read];
    } catch (error) {
      fileTroubles.value = [...fileTroubles.value, error instanceof Error ? error.message : String(error)];
    }
  }
}

/** Hands the files over to a message. */
export function takeAttached(): TextFile[] {
  const taken = attached.value;
  attached.value = [];
  fileTroubles.value = [];
  return taken;
}
