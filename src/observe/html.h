// HTML pages: escaping, and one self-contained page with its style.
#pragma once

#include <string>
#include <string_view>

namespace miles {

/// Text made safe between tags and inside quoted attributes.
std::string escape_html(std::string_view text);

/// A whole page around `body` (HTML). Nothing is loaded from anywhere; light or dark as the reader
/// prefers. Defines the colours that charts name: blue-0 … 4, orange-0 … 3, green-0 … 3, grey-0 … 3
/// (dark to light; blue and orange are told apart by every kind of colour vision) and pink-0.
std::string html_page(std::string_view title, std::string_view body);

}  // namespace miles
