#!/bin/sh
# A reward for --custom-rm-command: one JSON line in, one out. A story should speak of a friend, have dialogue, and
# be "happy" somewhere; each counts a third. Fewer than 20 words, or few distinct ones, get nothing.
# In shell and awk so that it runs anywhere; yours is more likely a Python program around the same two lines.
while IFS= read -r line; do
  printf '%s\n' "$line" | awk '
    function field(name, at) {
      at = index($0, "\"" name "\":")
      return substr($0, at + length(name) + 3)
    }
    {
      text = field("response")
      sub(/","(id|prompt|label|metadata)":.*$/, "", text)
      sub(/"}$/, "", text)
      n = split(tolower(text), words, /[^a-z]+/)
      for (i = 1; i <= n; i++)
        if (words[i] != "" && !(words[i] in seen)) { seen[words[i]] = 1; distinct++ }
      reward = 0
      if (n >= 20 && distinct >= 0.4 * n)
        reward = ((("friend" in seen) || ("friends" in seen)) + (index(text, "\\\"") > 0) + ("happy" in seen)) / 3
      printf "{\"id\":%d,\"reward\":%.4f}\n", field("id") + 0, reward
    }'
done
