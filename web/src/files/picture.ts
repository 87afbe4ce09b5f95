// Images that go out as parts of a message.

export interface Picture {
  name: string;
  /** A data: URL. */
  url: string;
}

const TYPES = /^image\/(png|jpeg|gif|webp|tiff)$/;
// Larger files are drawn anew: the browser keeps a few MB, and models look at smaller images.
const MAX_BYTES = 300 * 1024;
const MAX_SIDE_PX = 1536;

export function isPicture(file: object): file is Picture {
  return "url" in file;
}

/** Throws Error with why a file cannot be part of a message. */
export async function readPicture(file: File): Promise<Picture> {
  if (!TYPES.test(file.type)) throw new Error(`${file.name}: is no PNG, JPEG, GIF, WebP or TIFF`);
  if (file.size <= MAX_BYTES) return { name: file.name, url: dataUrl(file.type, new Uint8Array(await file.arrayBuffer())) };
  try {
    return { name: file.name, url: await redrawn(file) };
  } catch {
    throw new Error(`${file.name}: this browser cannot show it`);
  }
}

function dataUrl(type: string, bytes: Uint8Array): string {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return `data:${type};base64,${btoa(text)}`;
}

async function redrawn(file: File): Promise<string> {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_SIDE_PX / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(bitmap.width * scale));
  canvas.height = Math.max(1, Math.round(bitmap.height * scale));
  const context = canvas.getContext("2d");
  if (context === null) throw new Error("no canvas");
  // JPEG knows no transparency.
  context.fillStyle = "white";
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  bitmap.close();
  return canvas.toDataURL("image/jpeg", 0.85);
}

/** A request as people read it: the data of images is cut. */
export function abridged<Value>(body: Value): Value {
  const cut = (_: string, value: unknown) => (typeof value === "string" && value.startsWith("data:image/") ? `${value.slice(0, 40)}…` : value);
  return JSON.parse(JSON.stringify(body, cut)) as Value;
}
