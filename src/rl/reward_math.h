// The final number of a solution in words, as GSM8K- and MATH-like tasks grade it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace miles {

/// A number as written: [-]integer[.fraction], or that over a whole denominator.
struct WrittenNumber {
  std::string decimal;      // no plus, no needless zeros at either end; "0" for -0
  std::string denominator;  // digits, not zero; "1" unless it was written as a fraction

  double value() const;
};

/// Equal as numbers: exactly, whatever their length, when neither is a fraction; else to 12 digits.
bool operator==(const WrittenNumber& a, const WrittenNumber& b);

/// The number a text answers with, looked for in this order:
///   1. the first number after the last "####" (on the same line)
///   2. the last number inside the last \boxed{...}
///   3. the last number of the text
/// A mark without a number after it answers nothing: the places below it are not tried.
/// Numbers: "18", "-3", "1,234.50", "1{,}234", ".5", "$5", "-$5", "50%" (reads as 50), "3/4",
/// "\frac{3}{4}". A minus after a digit, a letter or a closing bracket is an operator: "16-3" ends in 3.
std::optional<WrittenNumber> final_number(std::string_view text);

/// Whether both texts answer with a number, and with the same.
bool same_final_number(std::string_view response, std::string_view label);

}  // namespace miles
