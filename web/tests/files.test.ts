import { expect, test } from "vitest";
import { add, change, newConversation, readConversation, ROOT, sent } from "../src/chat/conversation";
import { info, models } from "../src/api/model";
import { attach, attached, fileTroubles, takeAttached } from "../src/files/attached";
import { abridged, readPicture } from "../src/files/picture";
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
  [new File(["x"], "c.wav", { type: "audio/wav" }), "c.wav: only text and images are read, no audio"],
  [new File(["x".repeat(300_000)], "d.txt"), "d.txt: a file may have 256 kB, this one has 293"],
])("what is no text, or too much, is refused with why", async (file, why) => {
  await expect(readTextFile(file)).rejects.toThrow(why);
});

test.each([[{ name: "a" }], [{ name: "a", url: "https://elsewhere/a.png" }]])("files that are none are refused with their place", (file) => {
  const message = { role: "user", content: "", parent: "root", files: [file] };
  expect(() => readConversation({ title: "a", system: "", messages: { m: message }, chosen: {} })).toThrow("`messages.m.files`");
});

const PNG = new File([new Uint8Array([1, 2, 3])], "c.png", { type: "image/png" });
const URL_OF_PNG = "data:image/png;base64,AQID";

test("images stand before a message's text, and are kept with it", () => {
  const files = [{ name: "a.py", text: "x" }, { name: "c.png", url: URL_OF_PNG }];
  const image = { type: "image_url", image_url: { url: URL_OF_PNG } };
  const [chat, message] = add(newConversation(), ROOT, "user", "What?", files);
  const read = readConversation(JSON.parse(JSON.stringify(chat)));

  expect(Object.values(read.messages).map(sent)).toEqual([
    { role: "user", content: [image, { type: "text", text: "What?\n\na.py:\n```\nx\n```" }] },
  ]);
  expect(sent({ ...message, content: "", files: files.slice(1) }).content).toEqual([image]);
});

test("a small image is sent as it is", async () => {
  expect(await readPicture(PNG)).toEqual({ name: "c.png", url: URL_OF_PNG });
  await expect(readPicture(new File(["<svg/>"], "d.svg", { type: "image/svg+xml" }))).rejects.toThrow("d.svg: is no PNG");
});

test("an image is attached where the model sees, else the page says why it does not", async () => {
  models.value = [{ id: "m", maxLen: null, sees: false }];
  info.value = { blind_reason: "no pillow" };
  await attach([PNG]);
  expect(fileTroubles.value).toEqual(["c.png: this model reads text alone: no pillow"]);
  models.value = [{ id: "m", maxLen: null, sees: true }];
  await attach([PNG]);
  expect(fileTroubles.value).toEqual([]);
  expect(takeAttached()).toEqual([{ name: "c.png", url: URL_OF_PNG }]);
  expect(attached.value).toEqual([]);
});

test("code for people has no data of images", () => {
  const url = `data:image/png;base64,${"A".repeat(1000)}`;
  expect(JSON.stringify(abridged({ messages: [{ image_url: { url } }] })).length).toBeLessThan(120);
});
