import { expect, test } from "vitest";
import { add, change, newConversation, readConversation, ROOT, sent } from "../src/chat/conversation";
import { readTextFile, withFiles } from "../src/files/textFile";

test("files stand behind the message, in fences that they cannot end", () => {
  const files = [
    { name: "a.py", text: "x = 1\n" },
    { name: "b.md", text: "````\ncode\n````" },
  ];
  const whole = "What is this?\n\na.py:\n```\nx = 1\n```\n\nb.md:\n`````\n````\ncode\n````\n`````";

  expect(withFiles("What is this?", files)).toBe(whole);
  expect(withFiles("", files.slice(0, 1))).toBe("a.py:\n```\nx = 1\n```");
  const [chat, message] = add(newConversation(), ROOT, "user", "What is this?");
  const read = readConversation(JSON.parse(JSON.stringify(change(chat, message.id, { files }))));
  expect(Object.values(read.messages).map(sent)).toEqual([{ role: "user", content: whole }]);
});

test("a text file is read whatever its name", async () => {
  expect(await readTextFile(new File(["Grüße"], "a.unknown"))).toEqual({ name: "a.unknown", text: "Grüße" });
});

test.each([
  [new File([new Uint8Array([0xff, 0xfe, 0x41])], "a.bin"), "a.bin: is no text"],
  [new File(["a\0b"], "b.bin"), "b.bin: is no text"],
  [new File(["x"], "c.png", { type: "image/png" }), "c.png: only text is read, no image"],
  [new File(["x".repeat(300_000)], "d.txt"), "d.txt: a file may have 256 kB, this one has 293"],
])("what is no text, or too much, is refused with why", async (file, why) => {
  await expect(readTextFile(file)).rejects.toThrow(why);
});

test("files that are none are refused with their place", () => {
  const message = { role: "user", content: "", parent: "root", files: [{ name: "a" }] };
  expect(() => readConversation({ title: "a", system: "", messages: { m: message }, chosen: {} })).toThrow("`messages.m.files`");
});
