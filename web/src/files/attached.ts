// The files of the next message.
import { signal } from "@preact/signals";
import { info, sees } from "../api/model";
import type { Picture } from "./picture";
import { readPicture } from "./picture";
import type { TextFile } from "./textFile";
import { readTextFile } from "./textFile";

export type MessageFile = TextFile | Picture;

export const attached = signal<MessageFile[]>([]);
/** Why files were left out. */
export const fileTroubles = signal<string[]>([]);

export async function attach(files: Iterable<File>): Promise<void> {
  fileTroubles.value = [];
  for (const file of files) {
    try {
      const read = await (file.type.startsWith("image/") ? readImage(file) : readTextFile(file));
      attached.value = [...attached.value, read];
    } catch (error) {
      fileTroubles.value = [...fileTroubles.value, error instanceof Error ? error.message : String(error)];
    }
  }
}

async function readImage(file: File): Promise<Picture> {
  const { blind_reason: reason } = info.value;
  if (!sees()) throw new Error(`${file.name}: this model reads text alone${typeof reason === "string" ? `: ${reason}` : ""}`);
  return readPicture(file);
}

/** Hands the files over to a message. */
export function takeAttached(): MessageFile[] {
  const taken = attached.value;
  attached.value = [];
  fileTroubles.value = [];
  return taken;
}
