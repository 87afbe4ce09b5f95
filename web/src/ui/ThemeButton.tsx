// Goes from one theme to the next, and says which one is on.
import { nextTheme, theme } from "./theme";

const NAMES = { system: "System", light: "Light", dark: "Dark" } as const;

export function ThemeButton() {
  return (
    <button type="button" class="quiet theme" onClick={nextTheme}>
      Theme: {NAMES[theme.value]}
    </button>
  );
}
