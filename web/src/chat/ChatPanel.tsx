// The chat: its messages, and the field for the next one.
import { Side } from "../ui/Side";
import { ChatList } from "./ChatList";
import { Composer } from "./Composer";
import { MessageList } from "./MessageList";
import { SettingsSide } from "./SettingsSide";
import { SystemPrompt } from "./SystemPrompt";

export function ChatPanel() {
  return (
    <div class="columns">
      <Side name="chats" label="Chats">
        <ChatList />
      </Side>
      <main class="chat">
        <MessageList />
        <Composer />
      </main>
      <SettingsSide>
        <SystemPrompt />
      </SettingsSide>
    </div>
  );
}
