#!/bin/sh
# A reward for --custom-rm-command: one JSON line in, one out. It asks a story to be a whole one: it speaks of
# a "friend", has dialogue, and is "happy" somewhere; each counts a third, but text that repeats one word gets nothing.
# Written for awk so that it runs anywhere; a real reward is more likely a Python program with the same two lines.
exec awk '
function field(line, name,    at, rest) {
  at = index(line, "\"" name "\":")
  rest = substr(line, at + length(name) + 3)
  return rest
}
{
  id = field($0, "id") + 0
  text = field($0, "response")
  sub(/","(prompt|label|metadata)":.*$/, "", text)
  n = split(tolower(text), words, /[^a-z]+/)
  delete seen; distinct = 0
  for (i = 1; i <= n; i++) if (words[i] != "" && !(words[i] in seen)) { seen[words[i]] = 1; distinct++ }
  reward = 0
  if (n >= 20 && distinct >= 0.4 * n) {
    if ("friend" in seen || "friends" in seen) reward += 1
    if (index(text, "\\\"") > 0) reward += 1
    if ("happy" in seen) reward += 1
  }
  printf "{\"id\":%d,\"reward\":%.4f}\n", id, reward / 3
  fflush()
}'
