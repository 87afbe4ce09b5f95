// The server that this page came from: its addresses are relative, so that a proxy may add a prefix.
import { isObject, ServerError } from "./errors";
import { readEvents } from "./events";
import { isKeyRefused, isKeyWanted, storedKey } from "./key";

/** The answer, whatever its status; a 401 asks for the key. */
export async function request(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  const key = storedKey();
  if (key !== null) headers.set("authorization", `Bearer ${key}`);
  const response = await fetch(new URL(path, document.baseURI), { ...init, headers });
  if (response.status === 401) {
    isKeyRefused.value = key !== null;
    isKeyWanted.value = true;
  }
  return response;
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  const response = await request(path, init);
  if (response.ok) return response;
  const text = await response.text();
  let body: unknown = null;
  try {
    body = JSON.parse(text);
  } catch {
    // Not ours, but a proxy's: the status says what there is to say.
  }
  throw ServerError.of(response.status, body);
}

export async function getJson(path: string): Promise<unknown> {
  return (await ask(path, {})).json();
}

export async function getText(path: string): Promise<string> {
  return (await ask(path, {})).text();
}

/** The status of a health route; null: nobody answers. */
export async function healthOf(path: string): Promise<number | null> {
  try {
    return (await fetch(new URL(path, document.baseURI))).status;
  } catch {
    return null;
  }
}

function post(path: string, body: unknown, signal: AbortSignal | null): Promise<Response> {
  return ask(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
}

export async function postJson(path: string, body: unknown, signal: AbortSignal | null = null): Promise<unknown> {
  return (await post(path, body, signal)).json();
}

/** The events of a streamed answer. Throws ServerError for an error within the stream, too. */
export async function* postForEvents(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<unknown> {
  const response = await post(path, body, signal);
  if (response.body === null) return;
  for await (const event of readEvents(response.body)) {
    if (isObject(event) && "error" in event) throw ServerError.of(response.status, event);
    yield event;
  }
}
