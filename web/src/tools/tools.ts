// A list of tools as it is typed: read, or where the first mistake is.
import type { Node, ParseError } from "jsonc-parser";
import { findNodeAtLocation, getNodeValue, parseTree, printParseErrorCode } from "jsonc-parser";
import type { Place } from "../constraints/place";
import { placeOf } from "../constraints/place";

export interface ToolTrouble {
  message: string;
  place: Place | null;
}

export type ReadTools = { names: string[]; tools: unknown[] } | { trouble: ToolTrouble };

export const EXAMPLE = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "The weather in a city",
      "parameters": {
        "type": "object",
        "properties": {
          "city": { "type": "string", "maxLength": 40 },
          "unit": { "enum": ["celsius", "fahrenheit"] }
        },
        "required": ["city", "unit"],
        "additionalProperties": false
      }
    }
  }
]`;

/** Tools in OpenAI's form, or where the first mistake is. The schemas are the server's to judge. */
export function readTools(text: string): ReadTools {
  if (text.trim() === "") return { names: [], tools: [] };
  const errors: ParseError[] = [];
  const root = parseTree(text, errors, { disallowComments: true });
  const wrong = (message: string, offset: number): ReadTools => ({ trouble: { message, place: placeAt(text, offset) } });
  const first = errors[0];
  if (first !== undefined) return wrong(`not JSON: ${words(printParseErrorCode(first.error))}`, first.offset);
  if (root?.type !== "array") return wrong("must be a list of tools, in [ ]", root?.offset ?? 0);
  const names: string[] = [];
  for (const [index, tool] of (root.children ?? []).entries()) {
    const found = nameOf(tool, `tools[${index}]`, names);
    if (typeof found !== "string") return wrong(found.rule, found.node.offset);
    names.push(found);
  }
  return { names, tools: getNodeValue(root) as unknown[] };
}

function nameOf(tool: Node, place: string, others: string[]): string | { rule: string; node: Node } {
  const at = (...path: string[]): Node | undefined => findNodeAtLocation(tool, path);
  const [type, inner, name, parameters] = [at("type"), at("function"), at("function", "name"), at("function", "parameters")];
  const refused = (rule: string, node: Node = tool) => ({ rule: `\`${place}${rule}`, node });
  if (tool.type !== "object") return refused("` must be an object");
  if (type?.value !== "function") return refused('.type` must be "function"', type);
  if (inner?.type !== "object") return refused(".function` must be an object with a name", inner);
  if (!/^[\w-]{1,64}$/.test(String(name?.value ?? "")))
    return refused(".function.name` must be up to 64 letters, digits, _ or -", name ?? inner);
  if (others.includes(name?.value as string)) return refused(".function.name` is another tool's too", name);
  if (parameters !== undefined && parameters.type !== "object")
    return refused(".function.parameters` must be a JSON schema, an object", parameters);
  return name?.value as string;
}

function placeAt(text: string, offset: number): Place | null {
  return placeOf(text, [...text.slice(0, offset)].length, undefined);
}

function words(code: string): string {
  return code.replaceAll(/(?<!^)[A-Z]/g, (letter) => ` ${letter}`).toLowerCase();
}
