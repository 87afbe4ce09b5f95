// Numbers in the reader's locale.

export function fixed(value: number, digits: number): string {
  return new Intl.NumberFormat(undefined, { minimumFractionDigits: digits, maximumFractionDigits: digits }).format(value);
}

/** Whole from 100 on; no zeros behind the last digit. */
export function readable(value: number): string {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return new Intl.NumberFormat(undefined, { maximumFractionDigits: digits }).format(value);
}

/** 0 to 1 as percent. */
export function percent(value: number, maxDigits: number, minDigits = 0): string {
  return new Intl.NumberFormat(undefined, { style: "percent", minimumFractionDigits: minDigits, maximumFractionDigits: maxDigits }).format(value);
}
