// What is served: the names of models, and what /info says of the one behind them.
import { signal } from "@preact/signals";
import { isObject } from "./errors";
import { getJson } from "./server";

export interface ServedModel {
  id: string;
  /** Tokens of prompt and answer together. */
  maxLen: number | null;
  /** Whether messages may have images. */
  sees: boolean;
}

export const models = signal<ServedModel[]>([]);
/** The one that was chosen; null: the first. */
export const modelName = signal<string | null>(null);
export const info = signal<Record<string, unknown>>({});

/** The model that requests name. */
export function servedName(): string | undefined {
  return modelName.value ?? models.value[0]?.id;
}

/** Whether the chosen model takes images. */
export function sees(): boolean {
  return models.value.find(({ id }) => id === servedName())?.sees ?? false;
}

/** Asks anew; throws ServerError, or TypeError where nobody answers. */
export async function loadModels(): Promise<void> {
  const answer = await getJson("v1/models");
  const cards = isObject(answer) && Array.isArray(answer.data) ? answer.data : [];
  models.value = cards.filter(isObject).map((card) => ({
    id: String(card.id),
    maxLen: typeof card.max_model_len === "number" ? card.max_model_len : null,
    sees: card.sees === true,
  }));
  const answered = await getJson("info").catch(() => null);
  info.value = isObject(answered) ? answered : {};
}
