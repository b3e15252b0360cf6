#include "observe/html.h"

#include <fmt/format.h>

namespace miles {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --text: #1c2330; --soft: #5d6778; --line: #e1e5eb; --axis: #aab2bf;
  --hover: rgba(20,30,50,.09);
  --blue-0: #084a8c; --blue-1: #1f78c1; --blue-2: #5ea8e0; --blue-3: #9fcdf0; --blue-4: #cfe5f7;
  --orange-0: #a34700; --orange-1: #d9720d; --orange-2: #f2a140; --orange-3: #f8cd90;
  --green-0: #00634b; --green-1: #0b9a76; --green-2: #5cc4a5; --green-3: #a9e0cf;
  --grey-0: #4b5563; --grey-1: #7b8594; --grey-2: #a9b1bd; --grey-3: #d0d5dc; --pink-0: #b8407f; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161d; --card: #1a202a; --text: #e4e8ef; --soft: #98a2b3; --line: #2b3341; --axis: #566072;
  --hover: rgba(220,230,255,.12);
  --blue-0: #2f6fb5; --blue-1: #4a9be6; --blue-2: #78b7ee; --blue-3: #a9d2f5; --blue-4: #d3e8fa;
  --orange-0: #b85c10; --orange-1: #e8862a; --orange-2: #f4ac58; --orange-3: #f9d3a0;
  --green-0: #0f7d61; --green-1: #1fae88; --green-2: #67cdb0; --green-3: #b0e5d5;
  --grey-0: #b8c0cc; --grey-1: #8b95a5; --grey-2: #667082; --grey-3: #454e5e; --pink-0: #e07bb0; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Helvetica, Arial, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 22px; margin: 0 0 2px; } h2 { font-size: 16px; margin: 34px 0 12px; }
.soft { color: var(--soft); margin: 0; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 10px 16px;
  flex: 1 1 150px; }
.tile b { display: block; font-size: 20px; font-weight: 600; } .tile span { color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 14px; }
.charts .wide { grid-column: 1 / -1; }
figure, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 0;
  padding: 14px 16px; min-width: 0; }
figcaption { font-weight: 600; font-size: 15px; }
figure p { color: var(--soft); margin: 1px 0 0; font-size: 12.5px; }
figure svg { display: block; width: 100%; height: auto; margin-top: 6px; }
figure text { fill: var(--soft); font-size: 11.5px; }
figure .label { fill: var(--text); font-weight: 600; paint-order: stroke; stroke: var(--card);
  stroke-width: 3px; stroke-linejoin: round; }
figure .grid { stroke: var(--line); } figure .axis { stroke: var(--axis); }
figure .tick { stroke: var(--axis); opacity: .4; }
figure .hover rect { fill: transparent; } figure .hover rect:hover { fill: var(--hover); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 14px; margin-top: 5px; font-size: 12.5px;
  color: var(--soft); }
.legend svg { display: inline-block; width: 18px; height: 10px; margin: 0 6px 0 0; }
.none { color: var(--soft); padding: 40px 0; text-align: center; }
.card { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; white-space: nowrap; }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); } td { white-space: nowrap; }
tr:last-child td { border-bottom: 0; }
th.n, td.n { text-align: right; } td.name, pre { font-family: ui-monospace, "DejaVu Sans Mono", monospace;
  font-size: 12.5px; }
pre { margin: 0; overflow-x: auto; }
@media print { body { background: none; } figure, .card, .tile { break-inside: avoid; } }
)";

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string html_page(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</"
      "html>\n",
      escape_html(title), kStyle, body);
}

}  // namespace miles
