// Goes from one theme to the next, and says which one is on.
import { nextTheme, theme } from "./theme";

const NAMES = { system: "System", light: "Light", dark: "Dark" } as const;

export function ThemeButton() {
  const name = NAMES[theme.value];
  return (
    <button type="button" class="quiet theme" aria-label={`Theme: ${name}`} onClick={nextTheme}>
      Theme<span class="name">: {name}</span>
    </button>
  );
}
