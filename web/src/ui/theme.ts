// Dark or light: as the system says, unless chosen here.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
const NAME = "tandem.theme";
const THEMES: readonly Theme[] = ["system", "light", "dark"];

function load(): Theme {
  const stored = localStorage.getItem(NAME) as Theme | null;
  return stored !== null && THEMES.includes(stored) ? stored : "system";
}

export const theme = signal<Theme>(load());
effect(() => {
  localStorage.setItem(NAME, theme.value);
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});

export function nextTheme(): void {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length] ?? "system";
}
